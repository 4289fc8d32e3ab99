"""Duration of each stage of a date, in ``OUT/_work/dt=D/logs/seconds.json``.

Summed over all commands on the date, including failed ones, and killed ones up to their last progress report.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dare_job.storage import errors
from dare_job.storage.paths import AnyPath, make_folder
from dare_job.workspace import Workspace, write_json

_NAME = "seconds.json"


def read(space: Workspace) -> dict[str, float]:
    """Seconds by stage; empty if nothing is known."""
    try:
        record = json.loads((space.logs / _NAME).read_text(encoding="utf-8"))
        return {str(stage): float(seconds) for stage, seconds in record.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


@contextmanager
def counted(space: Workspace, stage: str) -> Iterator[Callable[[], None]]:
    """Add the duration of the block to the stage; yields a function that saves the duration so far."""
    before, began = read(space), time.monotonic()

    def beat() -> None:
        seconds = before.get(stage, 0.0) + time.monotonic() - began
        _write(space.logs, before | {stage: round(seconds, 3)})

    try:
        yield beat
    finally:
        beat()


def _write(folder: AnyPath, seconds: dict[str, float]) -> None:
    with errors.suppress_store_errors(OSError):  # only the statistics are lost
        make_folder(folder)
        write_json(folder / _NAME, seconds)
