"""The folder of a training's result: what it may replace, and how it is written atomically."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dare_job.errors import ConfigError
from dare_job.storage import atomic_folder
from dare_job.training.loop import versions
from dare_job.workspace import write_json

TRAINING = "training.json"


def require_replaceable(to: Path, kind: str, made_of: Mapping[str, str | Path | None]) -> None:
    """Check that a result may replace the folder ``to``.

    Parameters
    ----------
    made_of
        Models that the result is made from, by option; they must not be replaced.

    Raises
    ------
    ConfigError
        ``to`` is a file, is one of ``made_of``, or holds anything except an earlier result of this kind.
    """
    if to.exists() and not to.is_dir():
        raise ConfigError(f"--save {to} is a file; name a folder")
    for option, other in made_of.items():
        if other is not None and to.is_dir() and Path(other).is_dir() and to.samefile(other):
            raise ConfigError(f"--save {to} is the folder of {option}, which would be replaced; name another")
    if to.is_dir() and any(to.iterdir()) and (kind_there := _kind(to)) != kind:
        reason = f"no readable {TRAINING}" if kind_there is None else f"by its {TRAINING}: {kind_there}"
        raise ConfigError(f"--save {to} is not an earlier result of this command ({reason}), and its "
                          "contents would be replaced; name another folder")


def _kind(folder: Path) -> str | None:
    try:
        return json.loads((folder / TRAINING).read_text("utf-8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def training_folder(to: Path) -> Path:
    """Folder for the state of an unfinished training, next to its result."""
    return to.with_name(f".{to.name}.training")


def finish(to: Path, model, write: Callable[[Path], None], began: float, report: dict) -> dict:
    """Write a result's folder atomically, and remove the state of its training.

    Returns what is written to ``training.json``: the report with parameters, minutes since ``began``
    (monotonic) and versions.

    Parameters
    ----------
    write
        Writes the model into a folder.
    """
    report = {**report, "parameters": model.num_parameters(),
              "minutes": round((time.monotonic() - began) / 60, 2), "versions": versions()}
    staging = atomic_folder.stage_folder(to)
    with atomic_folder.remove_on_error(staging):
        write(staging)
        write_json(staging / TRAINING, report)
        atomic_folder.replace(staging, to)
    shutil.rmtree(training_folder(to), ignore_errors=True)
    return report
