"""Rows that a worker was decoding when it hung, one small file a hang:

    generate/hung/<shard>-<random>.json    token of the cut, entity type, ids, when and where

A later attempt at the shard decodes these rows one by one behind the others; one that hangs then, too, is
given up. Knows nothing of engines.
"""

import json
import secrets
import time
from collections import Counter

from dare_job import files
from dare_job.files import AnyPath
from dare_job.spark.task import Task
from dare_job.workspace import write_json

FOLDER = "hung"
TWICE = 2  # hangs after which a row is given up: in its batch, and alone
MOST = 16  # hangs of one shard in a run; more are no rows' fault, but a device's


def note(task: Task, shard: int, ids: list[str], worker: str) -> None:
    """Leave the ids of rows that were being decoded for later attempts at their shard."""
    folder = files.path(task.folder) / FOLDER
    files.make_folder(folder)
    write_json(folder / f"{shard:05d}-{secrets.token_hex(4)}.json",
               {"cut": task.cut, "shard": shard, "ids": ids, "worker": worker, "at_s": round(time.time(), 1)})


def times(task: Task, shard: int) -> Counter[str]:
    """How often a worker hung on each row of a shard of this cut."""
    hangs = _of(files.path(task.folder), task.cut, f"{shard:05d}-*.json")
    return Counter(name for hang in hangs for name in hang["ids"])


def by_shard(folder: AnyPath, cut: str) -> Counter[int]:
    """Hangs under a cut, by shard."""
    return Counter(hang["shard"] for hang in _of(folder, cut, "*.json"))


def count(folder: AnyPath, cut: str) -> int:
    """Hangs of all workers under a cut."""
    return by_shard(folder, cut).total()


def _of(folder: AnyPath, cut: str, names: str) -> list[dict]:
    hangs = (json.loads(path.read_text(encoding="utf-8")) for path in (folder / FOLDER).glob(names))
    return [hang for hang in hangs if hang["cut"] == cut]
