"""Ends a worker in which no forward of the model ends any more, as when a device hangs.

Spark then starts the task anew in another worker. The wait for a forward is outside Python's lock, so a
thread of this process sees it; it watches only while an engine is asked for its next result, and not while
that waits for rows.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

EXIT_CODE = 75  # "try again"
T = TypeVar("T")
_LOG = logging.getLogger("dare_job")


class Watched(Protocol):
    """An engine, or whatever else has forwards of its own: ``clock_s`` moves whenever one of them ends."""

    clock_s: float

    def in_slots(self) -> Sequence[str]:
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
                self._bite(engine.in_slots(), now - since)
                return

    def _bite(self, ids: list[str], seconds: float) -> None:
        _LOG.error("no forward of the model has ended for %.0f s (decode.hang_timeout_s = %g): this worker "
                   "ends itself, and Spark starts its task anew; being decoded: %s", seconds, self._limit_s,
                   ", ".join(map(str, ids)) or "nothing yet")
        try:
            self._note(ids, f"no forward ended within {self._limit_s:g} s (decode.hang_timeout_s)")
            faulthandler.dump_traceback(sys.__stderr__)
        finally:
            self._end(EXIT_CODE)
