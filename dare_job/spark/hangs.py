"""Rows that a worker was decoding when it hung or its device failed, one small file a time ("hang"):

    generate/hung/<shard>-<random>.json    token of the cut, ids, why, when and where
    recommend/<fingerprint>/hung/...       the same; a shard is a chunk there

A later attempt at the shard decodes these rows one by one behind the others; one that ends a worker then,
too, is given up. Knows nothing of engines.
"""

import json
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Protocol, TypeVar

from dare_job import files
from dare_job.errors import InfrastructureError
from dare_job.files import AnyPath
from dare_job.spark import executors
from dare_job.workspace import write_json

T = TypeVar("T")
_LOG = logging.getLogger("dare_job")
FOLDER = "hung"
TWICE = 2  # hangs after which a row is given up: in its batch, and alone
MOST = 16  # hangs of one shard in a run; more are no rows' fault, but a device's


class Work(Protocol):
    """What a task works on: a stage's folder, and the token of what it was cut into."""

    folder: str
    cut: str


def note(task: Work, shard: int, worker: str, ids: list[str], why: str) -> None:
    """Leave the ids of rows that were being decoded for later attempts at their shard."""
    folder = files.path(task.folder) / FOLDER
    files.make_folder(folder)
    write_json(folder / f"{shard:05d}-{secrets.token_hex(4)}.json",
               {"cut": task.cut, "shard": shard, "ids": ids, "worker": worker, "why": why,
                "at_s": time.time()})


def reasons(task: Work, shard: int) -> dict[str, list[str]]:
    """Why workers ended over the rows of a shard of this cut: for each row's id, one reason a time."""
    found = defaultdict(list)
    for hang in sorted(_of(files.path(task.folder), task.cut, f"{shard:05d}-*.json"), key=itemgetter("at_s")):
        for name in hang["ids"]:
            found[name].append(hang["why"])
    return found


def given_up(whys: Sequence[str]) -> str | None:
    """The ``error`` of a row over which workers ended for these reasons; None: it is tried once more."""
    if len(whys) < TWICE:
        return None
    return f"ended {len(whys)} workers, the last with this row alone: {whys[-1]}"


def until_done(folder: AnyPath, cut: str, attempt: Callable[[], T]) -> T:
    """What an attempt at all that is left gives, one Spark job each.

    A row that hangs, or that a device fails over, ends two attempts at its shard before it is given up, so a
    few of them end Spark's job (``spark.task.maxFailures``). Where workers ended so, and rows were noted for
    it, what is left is therefore tried again, until a shard has had ``MOST`` of them. Any other failure
    ends as Spark lets it.
    """
    before = seen = by_shard(folder, cut)
    while True:
        try:
            with executors.failing_plainly():
                return attempt()
        except InfrastructureError as error:
            found = by_shard(folder, cut)
            if found == seen or max((found - before).values()) >= MOST:
                raise
            _LOG.warning("workers hung, or their device failed, %d times; what is left is tried again: %s",
                         (found - seen).total(), error)
            seen = found


def by_shard(folder: AnyPath, cut: str) -> Counter[int]:
    """Hangs under a cut, by shard."""
    return Counter(hang["shard"] for hang in _of(folder, cut, "*.json"))


def count(folder: AnyPath, cut: str) -> int:
    """Hangs of all workers under a cut."""
    return by_shard(folder, cut).total()


def _of(folder: AnyPath, cut: str, names: str) -> list[dict]:
    hangs = (json.loads(path.read_text(encoding="utf-8")) for path in (folder / FOLDER).glob(names))
    return [hang for hang in hangs if hang["cut"] == cut]
