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
EXIT_CODE = 75  # "try again"
MAX_ROW_HANGS = 2  # hangs after which a row is given up: once in its batch, once alone
MAX_SHARD_HANGS = 16  # hangs of one shard in a run; more indicate a faulty device, not faulty rows


class HangScope(Protocol):
    """Part of a task that identifies its hangs: the stage's folder and the token of the shard plan."""

    folder: str
    plan_token: str


def record_hang(task: HangScope, shard: int, worker: str, ids: list[str], reason: str) -> None:
    """Record the ids of the rows that were being decoded, for later attempts at the shard."""
    folder = paths.path(task.folder) / FOLDER
    paths.make_folder(folder)
    write_json(folder / f"{shard:05d}-{secrets.token_hex(4)}.json",
               {"cut": task.plan_token, "shard": shard, "ids": ids, "worker": worker, "why": reason,
                "at_s": time.time()})


def hang_reasons(task: HangScope, shard: int) -> dict[str, list[str]]:
    """Reasons of the hangs of a shard, oldest first, by row id."""
    reasons = defaultdict(list)
    hangs = _records(paths.path(task.folder), task.plan_token, f"{shard:05d}-*.json")
    for hang in sorted(hangs, key=itemgetter("at_s")):
        for name in hang["ids"]:
            reasons[name].append(hang["why"])
    return reasons


def give_up_reason(reasons: Sequence[str]) -> str | None:
    """The ``error`` of a row that ended workers for these reasons; None if it is tried again."""
    if len(reasons) < MAX_ROW_HANGS:
        return None
    return f"ended {len(reasons)} workers, the last with this row alone: {reasons[-1]}"


def retry_after_hangs(folder: AnyPath, plan_token: str, attempt: Callable[[], T]) -> T:
    """Call ``attempt`` and return its result. Calls it again after hangs and device failures.

    An attempt is one Spark job over all remaining rows. A row that hangs or makes a device fail ends two
    attempts at its shard before it is given up, so a few such rows end a Spark job
    (``spark.task.maxFailures``). If a failed job recorded new hangs, the remaining rows are therefore tried
    again, until a shard has had ``MAX_SHARD_HANGS`` hangs.

    Raises
    ------
    InfrastructureError
        A job failed without new hangs, or a shard has had ``MAX_SHARD_HANGS`` hangs.
    """
    before = last = hangs_by_shard(folder, plan_token)
    while True:
        try:
            with executors.one_line_errors():
                return attempt()
        except InfrastructureError as error:
            hung = hangs_by_shard(folder, plan_token)
            if hung == last or max((hung - before).values()) >= MAX_SHARD_HANGS:
                raise
            _LOG.warning("workers hung or their device failed %d times; retrying the remaining rows: %s",
                         (hung - last).total(), error)
            last = hung


def hangs_by_shard(folder: AnyPath, plan_token: str) -> Counter[int]:
    """Number of hangs of a shard plan, by shard."""
    return Counter(hang["shard"] for hang in _records(folder, plan_token, "*.json"))


def hang_count(folder: AnyPath, plan_token: str) -> int:
    """Number of hangs of a shard plan."""
    return hangs_by_shard(folder, plan_token).total()


def _records(folder: AnyPath, plan_token: str, names: str) -> list[dict]:
    hangs = (json.loads(path.read_text(encoding="utf-8")) for path in (folder / FOLDER).glob(names))
    return [hang for hang in hangs if hang["cut"] == plan_token]


class Watched(Protocol):
    """An engine, or another source of forward passes. ``clock_s`` changes when a forward pass ends."""

    clock_s: float

    def active_ids(self) -> Sequence[str]:
        """Ids of the rows that are being decoded."""


class Watchdog:
    """Ends the process if no forward pass of a task's engines finishes within a time limit.

    Parameters
    ----------
    limit_s
        Maximum seconds between finished forward passes; None for no limit.
    note
        Called before the process ends, with the ids of the rows being decoded and the reason.
    end
        Ends the process, with an exit code.
    """

    def __init__(self, limit_s: float | None, note: Callable[[list[str], str], None],
                 end: Callable[[int], None] = os._exit):
        self._limit_s, self._note, self._end = limit_s, note, end
        self._engine: Watched | None = None  # the engine that is computing
        self.engine: Watched | None = None  # the engine whose results are being read
        self._turns = 0  # number of times that an engine started computing
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the watchdog during the block."""
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

    def watch(self, engine: Watched, results: Iterator[T]) -> Iterator[T]:
        """Yield ``results`` and watch the engine while it computes each of them."""
        self.engine = engine
        try:
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
        finally:
            self.engine = None

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
                self._end_process(engine.active_ids(), now - since)
                return

    def _end_process(self, ids: list[str], seconds: float) -> None:
        _LOG.error("no forward pass has finished for %.0f s (decode.hang_timeout_s = %g): this worker ends "
                   "and Spark restarts its task in another one; rows being decoded: %s",
                   seconds, self._limit_s, ", ".join(map(str, ids)) or "none yet")
        try:
            self._note(ids, f"no forward pass finished within {self._limit_s:g} s (decode.hang_timeout_s)")
            faulthandler.dump_traceback(sys.__stderr__)
        finally:
            self._end(EXIT_CODE)
