"""What a stage is at while it runs: a line kept up to date on a terminal, log lines elsewhere.

How fast rows are finished, and when the last one will be. Pure: the clock is an argument.
"""

import logging
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from http.client import HTTPException

import pyarrow as pa

from dare_job.storage import errors
from dare_job.storage.paths import AnyPath
from dare_job.tables.chunk_files import Tally, Totals

_WINDOW_S = 120.0  # at least so much of the past counts, and half of what there is


class Pace:
    """Rows and tokens a second since a part of the work began: a wave, or all of it.

    What was there when it began counts for nothing, so that a resumed run is not taken for a fast one.
    """

    def __init__(self):
        self._noted: list[tuple[float, int, int]] = []  # (s, rows, tokens) where rows had changed
        self._before: tuple[float, float] | None = None

    def begin(self, now: float, rows: int, tokens: int) -> None:
        """A new part begins; until it has rows of its own, the pace is that of the part before."""
        if self._noted:
            self._before = self.rates(now)
        self._noted = [(now, rows, tokens)]

    def note(self, now: float, rows: int, tokens: int) -> None:
        if self._noted and rows > self._noted[-1][1]:
            self._noted.append((now, rows, tokens))

    def rates(self, now: float) -> tuple[float, float] | None:
        """Rows and tokens a second lately; None where nothing was finished yet."""
        if len(self._noted) < 2:
            return self._before
        back = max(_WINDOW_S, (now - self._noted[0][0]) / 2)
        start = max(0, bisect_right(self._noted, (now - back, float("inf"), 0)) - 1)
        start = min(start, len(self._noted) - 2)
        began, rows, tokens = self._noted[start]
        _, last_rows, last_tokens = self._noted[-1]
        seconds = max(1e-9, now - began)
        return (last_rows - rows) / seconds, (last_tokens - tokens) / seconds

    def left_s(self, now: float, rows: int) -> float | None:
        """Seconds for ``rows`` more at this pace."""
        rates = self.rates(now)
        return rows / rates[0] if rates and rates[0] else None

_LOG = logging.getLogger("dare_job")

_QUIET_S = 2.0  # a stage that takes less says nothing but its last line

_POLL_S = 0.5


@dataclass(frozen=True)
class Reading:
    """How far a stage is: ``done`` of ``total`` where it counts something, and the fields of a log record."""

    elapsed_s: float
    what: str = "still at it"
    done: int | None = None
    total: int | None = None
    words: str = ""
    fields: dict = field(default_factory=dict)
    unit: str = ""

    def __str__(self) -> str:
        count = "" if self.total is None else f": {self.done} of {self.total}{self.unit}"
        return f"{self.what}{count}{', ' if self.words else ''}{self.words}"


Source = Callable[[float], Reading]  # of the seconds since the stage began


class Stage:
    """A running stage's progress: what it counts at the moment, and who is told."""

    def __init__(self, every_s: float, told: Sequence[Callable[[Reading], None]]):
        self.stopped = threading.Event()
        self.source: Source = Reading
        self.pace = Pace()
        self._every_s, self._told, self._began = every_s, told, time.monotonic()

    def follow(self) -> None:
        """Show readings until the stage ends: the body of a thread."""
        if self.stopped.wait(_QUIET_S):
            return
        with _bar() if sys.stderr.isatty() else _lines() as show:
            last, wait = None, 0.0
            while not self.stopped.wait(wait):
                began = time.monotonic()
                due = last is None or began - last >= self._every_s
                # a file that is gone again, a store that does not answer or talks nonsense
                with errors.suppress_store_errors(OSError, ValueError, KeyError, pa.ArrowException,
                                                  HTTPException):
                    reading = self.source(began - self._began)
                    show(reading, due)
                    if due:
                        last = began
                        for tell in self._told:
                            tell(reading)
                wait = max(_POLL_S, 20 * (time.monotonic() - began))  # folders of many files


_current: Stage | None = None


@contextmanager
def of_stage(every_s: float, told: Sequence[Callable[[Reading], None]] = ()) -> Iterator[None]:
    """Show that a stage is at work while the block runs; ``told`` get a reading every ``every_s`` seconds."""
    global _current
    _current = stage = Stage(every_s, told)
    thread = threading.Thread(target=copy_context().run, args=(stage.follow,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        _current = None
        stage.stopped.set()
        thread.join()


@contextmanager
def watching(folders: Iterable[AnyPath], rows: int, what: str = "writing") -> Iterator[None]:
    """Count the rows committed under ``folders`` while the block runs, of ``rows`` in the end."""
    with _from(_committed(_current, Tally(folders), rows, what) if _current else None):
        yield


@contextmanager
def counting(what: str, rows: int, done: Callable[[], int]) -> Iterator[None]:
    """Show how many of ``rows`` are finished, as ``done`` counts them, and the pace, while the block runs."""
    with _from(_counted(_current, what, rows, done) if _current else None):
        yield


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what the running stage is at, where nothing is counted, while the block runs."""
    with _from(lambda elapsed_s: Reading(elapsed_s, what)):
        yield


class Steps:
    """Counts the steps of a training, in place of a rich progress bar."""

    def add_task(self, what: str, total: int) -> int:
        self._done, stage = 0, _current
        if stage:
            stage.source = lambda elapsed_s: Reading(elapsed_s, what, self._done, total)
        return 0

    def advance(self, task: int) -> None:
        self._done += 1


@contextmanager
def _from(source: Source | None) -> Iterator[None]:
    """Let the running stage read from a source while the block runs."""
    stage = _current
    if stage and source:
        stage.source = source
    try:
        yield
    finally:
        if stage:
            stage.source = Reading


def _committed(stage: Stage, tally: Tally, rows: int, what: str) -> Source:
    """Reads the files that workers commit; they may be on other machines."""
    totals = tally.update()
    stage.pace.begin(time.monotonic(), totals.rows, totals.tokens)

    def read(elapsed_s: float) -> Reading:
        totals, now = tally.update(), time.monotonic()
        stage.pace.note(now, totals.rows, totals.tokens)
        rates, left = stage.pace.rates(now), stage.pace.left_s(now, rows - totals.rows)
        fields = {"rows": totals.rows, "rows_total": rows, "errors": totals.errors, "tokens": totals.tokens,
                  "accepted_per_step": totals.accepted_per_step, "busy_slots": totals.busy_slots,
                  "tokens_per_s": totals.tokens_per_s, "all_tokens_per_s": rates and rates[1], "eta_s": left}
        return Reading(elapsed_s, what, totals.rows, rows, describe(totals, rates and rates[1], left),
                       {name: _rounded(value) for name, value in fields.items()}, " rows")
    return read


def _counted(stage: Stage, what: str, rows: int, done: Callable[[], int]) -> Source:
    stage.pace.begin(time.monotonic(), done(), 0)

    def read(elapsed_s: float) -> Reading:
        finished, now = done(), time.monotonic()
        stage.pace.note(now, finished, 0)
        rates, left = stage.pace.rates(now), stage.pace.left_s(now, rows - finished)
        words = f"{rates[0]:.0f} rows/s" if rates else ""
        if left is not None:
            words += f", about {duration(left)} left at this pace"
        fields = {"rows": finished, "rows_total": rows, "rows_per_s": rates and rates[0], "eta_s": left}
        return Reading(elapsed_s, what, finished, rows, words,
                       {name: _rounded(value) for name, value in fields.items()}, " rows")
    return read


def describe(totals: Totals, all_tokens_per_s: float | None = None, left_s: float | None = None) -> str:
    """Tokens, acceptance, rates and what is left, as far as they are known."""
    words = [f"{totals.tokens} tokens"]
    if totals.accepted_per_step is not None:
        words.append(f"{totals.accepted_per_step:.2f} accepted a step")
    if totals.busy_slots is not None:
        words.append(f"{totals.busy_slots:.0%} of the slots busy")
    if totals.tokens_per_s is not None:
        words.append(f"{totals.tokens_per_s:.0f} tokens/s a worker")
    if all_tokens_per_s:
        words.append(f"{all_tokens_per_s:.0f} by all")
    if totals.errors:
        words.append(f"{totals.errors} errors")
    if left_s is not None:
        words.append(f"about {duration(left_s)} left at this pace")
    return ", ".join(words)


def duration(seconds: float) -> str:
    """Seconds as people say them: 2 h 5 min, 3 min 20 s, 12 s."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _rounded(value):
    return round(value, 4) if isinstance(value, float) else value


@contextmanager
def _bar():
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from structlog.contextvars import get_contextvars

    columns = (SpinnerColumn(), TextColumn("[bold]{task.fields[stage]}"), BarColumn(20),
               TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("", total=None, stage=get_contextvars().get("stage", ""))

        def show(reading: Reading, due: bool) -> None:
            bar.update(task, completed=reading.done or 0, total=reading.total, description=str(reading))
        yield show


@contextmanager
def _lines():
    from structlog.contextvars import get_contextvars

    stage = get_contextvars().get("stage", "stage")

    def show(reading: Reading, due: bool) -> None:
        if due:
            _LOG.info("%s: %s, %s so far", stage, reading, duration(reading.elapsed_s),
                      extra={"elapsed_s": round(reading.elapsed_s, 1), **reading.fields})
    yield show
