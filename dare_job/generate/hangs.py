"""Records hung workers and ends them. Independent of engines.

One small file per hang names the rows that were being decoded when a worker hung or its device failed:

    generate/hung/<shard>-<random>.json    token of the shard plan, ids, reason, time and worker
    recommend/<fingerprint>/hung/...       the same, with chunks as shards

The next attempt at the shard decodes these rows one by one after the others. A row that then ends a worker
again is given up.

``Watchdog`` ends a worker when no forward pass finishes within a time limit. Spark restarts the task in
another worker. A forward pass releases the GIL, so a thread of the same process can watch it. It watches
only while an engine computes its next result, not while the engine waits for rows.
"""

import faulthandler
import json
import logging
import os
import secrets
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Protocol, TypeVar

from dare_job.errors import InfrastructureError
from dare_job.spark import executors
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.workspace import write_json

T = TypeVar("T")

_LOG = logging.getLogger("dare_job")

FOLDER = "hung"

MAX_ROW_HANGS = 2  # hangs after which a row is given up: once in its batch, once alone

MAX_SHARD_HANGS = 16  # hangs of one shard in a run; more are no rows' fault, but a device's


class HangScope(Protocol):
    """Part of a task that identifies its hangs: the stage's folder and the token of the shard plan."""

    folder: str
    cut: str


def record_hang(task: HangScope, shard: int, worker: str, ids: list[str], why: str) -> None:
    """Record the ids of the rows that were being decoded, for later attempts at the shard."""
    folder = paths.path(task.folder) / FOLDER
    paths.make_folder(folder)
    write_json(folder / f"{shard:05d}-{secrets.token_hex(4)}.json",
               {"cut": task.cut, "shard": shard, "ids": ids, "worker": worker, "why": why,
                "at_s": time.time()})


def hang_reasons(task: HangScope, shard: int) -> dict[str, list[str]]:
    """Why workers ended over the rows of a shard of this cut: for each row's id, one reason a time."""
    found = defaultdict(list)
    for hang in sorted(_of(paths.path(task.folder), task.cut, f"{shard:05d}-*.json"), key=itemgetter("at_s")):
        for name in hang["ids"]:
            found[name].append(hang["why"])
    return found


def give_up_reason(whys: Sequence[str]) -> str | None:
    """The ``error`` of a row over which workers ended for these reasons; None: it is tried once more."""
    if len(whys) < MAX_ROW_HANGS:
        return None
    return f"ended {len(whys)} workers, the last with this row alone: {whys[-1]}"


def retry_after_hangs(folder: AnyPath, cut: str, attempt: Callable[[], T]) -> T:
    """What an attempt at all that is left gives, one Spark job each.

    A row that hangs, or that a device fails over, ends two attempts at its shard before it is given up, so a
    few of them end Spark's job (``spark.task.maxFailures``). Where workers ended so, and rows were noted for
    it, what is left is therefore tried again, until a shard has had ``MOST`` of them. Any other failure
    ends as Spark lets it.
    """
    before = seen = hangs_by_shard(folder, cut)
    while True:
        try:
            with executors.one_line_errors():
                return attempt()
        except InfrastructureError as error:
            found = hangs_by_shard(folder, cut)
            if found == seen or max((found - before).values()) >= MAX_SHARD_HANGS:
                raise
            _LOG.warning("workers hung, or their device failed, %d times; what is left is tried again: %s",
                         (found - seen).total(), error)
            seen = found


def hangs_by_shard(folder: AnyPath, cut: str) -> Counter[int]:
    """Number of hangs of a shard plan, by shard."""
    return Counter(hang["shard"] for hang in _of(folder, cut, "*.json"))


def hang_count(folder: AnyPath, cut: str) -> int:
    """Number of hangs of a shard plan."""
    return hangs_by_shard(folder, cut).total()


def _of(folder: AnyPath, cut: str, names: str) -> list[dict]:
    hangs = (json.loads(path.read_text(encoding="utf-8")) for path in (folder / FOLDER).glob(names))
    return [hang for hang in hangs if hang["cut"] == cut]

EXIT_CODE = 75  # "try again"


class Watched(Protocol):
    """An engine, or whatever else has forwards of its own: ``clock_s`` moves whenever one of them ends."""

    clock_s: float

    def active_ids(self) -> Sequence[str]:
        """Ids of the rows that are under way."""


class Watchdog:
    """Watches the engines of one task.

    limit_s  seconds without a forward's end; None: for ever
    note     is told the ids of the rows that were being decoded, and why, before the process ends
    end      ends the process
    """

    def __init__(self, limit_s: float | None, note: Callable[[list[str], str], None],
                 end: Callable[[int], None] = os._exit):
        self._limit_s, self._note, self._end = limit_s, note, end
        self._engine: Watched | None = None  # which is at work
        self._turns = 0  # how often one was set to work
        self._stop = threading.Event()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch while the block runs."""
        if self._limit_s is None:
            yield
            return
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def over(self, engine: Watched, results: Iterator[T]) -> Iterator[T]:
        """The same results; the engine is watched until each is there."""
        while True:
            self._turns += 1
            self._engine = engine
            try:
                result = next(results, None)
            finally:
                self._engine = None
            if result is None:
                return
            yield result

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not watch the engine while it waits for something else."""
        engine, self._engine = self._engine, None
        try:
            yield
        finally:
            self._turns += 1
            self._engine = engine

    def _watch(self) -> None:
        last, since = None, time.monotonic()
        while not self._stop.wait(min(self._limit_s / 4, 5.0)):
            engine, now = self._engine, time.monotonic()
            state = engine and (self._turns, engine.clock_s)
            if state is None or state != last:
                last, since = state, now
            elif now - since >= self._limit_s:
                self._bite(engine.active_ids(), now - since)
                return

    def _bite(self, ids: list[str], seconds: float) -> None:
        _LOG.error("no forward of the model has ended for %.0f s (decode.hang_timeout_s = %g): this worker "
                   "ends and Spark restarts its task in another one; rows being decoded: %s",
                   seconds, self._limit_s,
                   ", ".join(map(str, ids)) or "nothing yet")
        try:
            self._note(ids, f"no forward ended within {self._limit_s:g} s (decode.hang_timeout_s)")
            faulthandler.dump_traceback(sys.__stderr__)
        finally:
            self._end(EXIT_CODE)
