"""What benches keep in their work folder, so that the next call does not make it again."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers.utils import logging as hf_logging

from dare_job.workspace import committing, digest, done_record, is_done, write_json


@contextmanager
def work_folder(folder: Path | None) -> Iterator[Path]:
    """The folder to work in, a temporary one for None; transformers prints no progress."""
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    with TemporaryDirectory() if folder is None else nullcontext(folder) as path:
        yield Path(path)


def keep(folder: Path, made_of: Any, fill: Callable[[Path], dict | None]) -> dict:
    """Fill a folder unless it is complete and made of the same; return the record that ``fill`` returned."""
    fingerprint = digest(made_of)
    if not is_done(folder, fingerprint):
        record: dict = {}
        with committing(folder, fingerprint, record) as staging:
            record |= fill(staging) or {}
    return done_record(folder)


def keep_named(work: Path, name: str, made_of: Any, fill: Callable[[Path], dict | None]) -> Path:
    """The folder in ``work`` with this name and a digest of what it is made of, filled if it is missing."""
    folder = work / f"{name}-{digest(made_of)[:12]}"
    keep(folder, made_of, fill)
    return folder


def keep_figures(path: Path, measure: Callable[[], list[dict]]) -> list[dict]:
    """The figures in a JSON file, measured and written if it is missing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, measure())
    return json.loads(path.read_text(encoding="utf-8"))


def code_digest(*places: Path) -> str:
    """Digest of these Python files and folders, so that figures of other code are measured again."""
    files = [file for place in places for file in sorted([place] if place.is_file() else place.rglob("*.py"))]
    return digest([file.read_text(encoding="utf-8") for file in files])
