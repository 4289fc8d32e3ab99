"""Rows that a worker was decoding when it hung or its device failed, one small file a time ("hang"):

    generate/hung/<shard>-<random>.json    token of the cut, ids, why, when and where

A later attempt at the shard decodes these rows one by one behind the others; one that ends a worker then,
too, is given up. Knows nothing of engines.
"""

import json
import secrets
import time
from collections import Counter, defaultdict
from operator import itemgetter

from dare_job import files
from dare_job.files import AnyPath
from dare_job.spark.task import Task
from dare_job.workspace import write_json

FOLDER = "hung"
TWICE = 2  # hangs after which a row is given up: in its batch, and alone
MOST = 16  # hangs of one shard in a run; more are no rows' fault, but a device's


def note(task: Task, shard: int, worker: str, ids: list[str], why: str) -> None:
    """Leave the ids of rows that were being decoded for later attempts at their shard."""
    folder = files.path(task.folder) / FOLDER
    files.make_folder(folder)
    write_json(folder / f"{shard:05d}-{secrets.token_hex(4)}.json",
               {"cut": task.cut, "shard": shard, "ids": ids, "worker": worker, "why": why,
                "at_s": time.time()})


def reasons(task: Task, shard: int) -> dict[str, list[str]]:
    """Why workers ended over the rows of a shard of this cut: for each row's id, one reason a time."""
    found = defaultdict(list)
    for hang in sorted(_of(files.path(task.folder), task.cut, f"{shard:05d}-*.json"), key=itemgetter("at_s")):
        for name in hang["ids"]:
            found[name].append(hang["why"])
    return found


def by_shard(folder: AnyPath, cut: str) -> Counter[int]:
    """Hangs under a cut, by shard."""
    return Counter(hang["shard"] for hang in _of(folder, cut, "*.json"))


def count(folder: AnyPath, cut: str) -> int:
    """Hangs of all workers under a cut."""
    return by_shard(folder, cut).total()


def _of(folder: AnyPath, cut: str, names: str) -> list[dict]:
    hangs = (json.loads(path.read_text(encoding="utf-8")) for path in (folder / FOLDER).glob(names))
    return [hang for hang in hangs if hang["cut"] == cut]
