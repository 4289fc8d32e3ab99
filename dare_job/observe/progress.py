"""Progress of long work: one line kept up to date on a terminal or in a notebook, log lines elsewhere.

Work that is counted (rows, steps) also gets a rate and an estimate of the time left.
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
from functools import partial
from http.client import HTTPException

import pyarrow as pa

from dare_job.storage import errors
from dare_job.storage.paths import AnyPath
from dare_job.tables.chunk_files import Tally, Totals
from dare_job.tables.chunk_progress import OpenChunks

_WINDOW_S = 120.0  # rates cover at least this much of the past, or half of it if that is longer
_SILENT_S = 2.0  # shorter work reports nothing
_POLL_S = 0.5
_LOG = logging.getLogger("dare_job")


class Pace:
    """Recent rows and tokens per second of the current part of the work, such as a wave.

    Rows that existed when the part began do not count, so a resumed run does not look fast. The clock is an
    argument of every method.
    """

    def __init__(self):
        self._samples: list[tuple[float, int, int]] = []  # (s, rows, tokens) whenever one had changed
        self._before: tuple[float, float] | None = None

    def begin(self, now: float, rows: int, tokens: int) -> None:
        """Begin a part. Until it finishes rows, its rates are those of the part before."""
        if self._samples:
            self._before = self.rates(now)
        self._samples = [(now, rows, tokens)]

    def note(self, now: float, rows: int, tokens: int) -> None:
        """Record the number of finished rows and tokens."""
        if self._samples and (rows, tokens) > self._samples[-1][1:]:
            self._samples.append((now, rows, tokens))

    def rates(self, now: float) -> tuple[float, float] | None:
        """Recent rows and tokens per second; None before there is a token."""
        if len(self._samples) < 2:
            return self._before
        window = max(_WINDOW_S, (now - self._samples[0][0]) / 2)
        start = max(0, bisect_right(self._samples, (now - window, float("inf"), 0)) - 1)
        start = min(start, len(self._samples) - 2)
        began, rows, tokens = self._samples[start]
        _, last_rows, last_tokens = self._samples[-1]
        seconds = max(1e-9, now - began)
        row_rate = (last_rows - rows) / seconds
        if self._before and last_rows == self._samples[0][1]:  # no row of this part is finished
            row_rate = self._before[0]
        return row_rate, (last_tokens - tokens) / seconds

    def left_s(self, now: float, rows: int) -> float | None:
        """Seconds that ``rows`` more rows take at the recent rate."""
        rates = self.rates(now)
        return rows / rates[0] if rates and rates[0] else None


@dataclass(frozen=True)
class Reading:
    """Progress at one moment; ``done`` and ``total`` only if the work is counted; ``fields`` for the log."""

    elapsed_s: float
    what: str
    done: int | None = None
    total: int | None = None
    details: str = ""
    fields: dict = field(default_factory=dict)
    unit: str = ""

    def __str__(self) -> str:
        count = "" if self.total is None else f": {self.done} of {self.total} {self.unit}"
        return f"{self.what}{count}{', ' if self.details else ''}{self.details}"


EVERY_S = 15.0  # between two log lines, and between two metrics of progress
Source = Callable[[float], Reading]  # of the seconds since the work began


@dataclass
class Counter:
    """A count that the work itself advances; ``details`` follow it in the progress line."""

    total: int
    done: int = 0
    details: str = ""

    def advance(self, count: int = 1) -> None:
        self.done += count


class Reporter:
    """Reads a source at intervals, shows the reading and passes it to listeners."""

    def __init__(self, what: str, every_s: float, listeners: Sequence[Callable[[Reading], None]]):
        self.stopped = threading.Event()
        self.source: Source = partial(Reading, what=what)
        self.pace = Pace()
        self._every_s, self._listeners, self._began = every_s, listeners, time.monotonic()

    def run(self) -> None:
        """Report until ``stopped`` is set: the body of a thread."""
        if self.stopped.wait(_SILENT_S):
            return
        with _bar() if sys.stderr.isatty() else _notebook() if _in_notebook() else _lines() as show:
            last, wait = None, 0.0
            while not self.stopped.wait(wait):
                began = time.monotonic()
                due = last is None or began - last >= self._every_s
                # a file was removed meanwhile, or a store does not answer or answers nonsense
                with errors.suppress_store_errors(OSError, ValueError, KeyError, pa.ArrowException,
                                                  HTTPException):
                    reading = self.source(began - self._began)
                    show(reading, due)
                    if due:
                        last = began
                        for listener in self._listeners:
                            listener(reading)
                wait = max(_POLL_S, 20 * (time.monotonic() - began))  # folders with many files


_current: Reporter | None = None


@contextmanager
def reporting(what: str, every_s: float | None = None,
              listeners: Sequence[Callable[[Reading], None]] = ()) -> Iterator[None]:
    """Report progress while the block runs.

    Parameters
    ----------
    what
        What is done where no inner block says it.
    every_s
        Seconds between two log lines, and between two calls of the listeners.
    """
    global _current
    _current = reporter = Reporter(what, EVERY_S if every_s is None else every_s, listeners)
    thread = threading.Thread(target=copy_context().run, args=(reporter.run,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        _current = None
        reporter.stopped.set()
        thread.join()


@contextmanager
def watching(folders: Iterable[AnyPath], rows: int, what: str = "writing",
             open_chunks: OpenChunks | None = None) -> Iterator[None]:
    """Report how many of ``rows`` rows are finished while the block runs.

    These are the rows committed under ``folders`` and, if given, those of ``open_chunks``.
    """
    with _from(lambda reporter: _finished(reporter, Tally(folders), rows, what, open_chunks)):
        yield


@contextmanager
def counting(what: str, total: int, done: Callable[[], int] | None = None,
             unit: str = "rows") -> Iterator[Counter]:
    """Report a count, its rate and the time left while the block runs.

    Parameters
    ----------
    done
        Returns the count; None: the block advances the returned counter.
    """
    counter = Counter(total)
    with _from(lambda reporter: _counted(reporter, what, counter, done or (lambda: counter.done), unit)):
        yield counter


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Report what is being done, without a count, while the block or the decorated function runs.

    An inner block replaces the words of an outer one until it ends.
    """
    with _from(lambda reporter: lambda elapsed_s: Reading(elapsed_s, what)):
        yield


@contextmanager
def _from(make_source: Callable[[Reporter], Source]) -> Iterator[None]:
    """Report from a source while the block runs, with a reporter of its own if there is none."""
    if _current is None:
        with reporting("working"), _from(make_source):
            yield
        return
    reporter = _current
    before, reporter.source = reporter.source, make_source(reporter)
    try:
        yield
    finally:
        reporter.source = before


def _finished(reporter: Reporter, tally: Tally, rows: int, what: str,
              open_chunks: OpenChunks | None) -> Source:
    """Read the files that workers write, possibly on other machines."""
    totals = tally.update()
    reporter.pace.begin(time.monotonic(), totals.rows, totals.tokens)

    def read(elapsed_s: float) -> Reading:
        totals = tally.update()
        if open_chunks:  # read second: a chunk that is committed in between counts once or not yet
            totals += open_chunks.totals()
        now = time.monotonic()
        done = min(totals.rows, rows)  # rows of a chunk just committed can count twice for a moment
        reporter.pace.note(now, done, totals.tokens)
        rates, left = reporter.pace.rates(now), reporter.pace.left_s(now, rows - done)
        fields = {"rows": done, "rows_total": rows, "errors": totals.errors, "tokens": totals.tokens,
                  "accepted_per_step": totals.accepted_per_step, "busy_slots": totals.busy_slots,
                  "tokens_per_s": totals.tokens_per_s, "all_tokens_per_s": rates and rates[1], "eta_s": left}
        return Reading(elapsed_s, what, done, rows, describe(totals, rates and rates[1], left),
                       _rounded(fields), "rows")
    return read


def _counted(reporter: Reporter, what: str, counter: Counter, done: Callable[[], int], unit: str) -> Source:
    reporter.pace.begin(time.monotonic(), done(), 0)

    def read(elapsed_s: float) -> Reading:
        finished, now = done(), time.monotonic()
        reporter.pace.note(now, finished, 0)
        rates, left = reporter.pace.rates(now), reporter.pace.left_s(now, counter.total - finished)
        details = [counter.details, f"{rates[0]:.3g} {unit}/s" if rates else "", _left(left)]
        fields = {unit: finished, f"{unit}_total": counter.total, f"{unit}_per_s": rates and rates[0],
                  "eta_s": left}
        return Reading(elapsed_s, what, finished, counter.total, ", ".join(filter(None, details)),
                       _rounded(fields), unit)
    return read


def describe(totals: Totals, all_tokens_per_s: float | None = None, left_s: float | None = None) -> str:
    """Tokens, acceptance, rates and time left, as far as they are known."""
    parts = [f"{totals.tokens} tokens"]
    if totals.accepted_per_step is not None:
        parts.append(f"{totals.accepted_per_step:.2f} accepted per step")
    if totals.busy_slots is not None:
        parts.append(f"{totals.busy_slots:.0%} batch utilization")
    if totals.tokens_per_s is not None:
        parts.append(f"{totals.tokens_per_s:.0f} tokens/s per worker")
    if all_tokens_per_s:
        parts.append(f"{all_tokens_per_s:.0f} tokens/s in total")
    if totals.errors:
        parts.append(f"{totals.errors} errors")
    return ", ".join([*parts, *filter(None, [_left(left_s)])])


def duration(seconds: float) -> str:
    """Seconds in a suitable unit: 0.4 s, 41 s, 12 min, 3.4 h, 5.2 days.

    Raises
    ------
    AssertionError
        ``seconds`` is inf or NaN.
    """
    for size, unit, end in ((1, "s", 120), (60, "min", 120), (3600, "h", 72), (86400, "days", float("inf"))):
        scaled = seconds / size
        if scaled < end:
            return f"{scaled:,.0f} {unit}" if scaled >= 10 or scaled == 0 else f"{scaled:.1f} {unit}"
    raise AssertionError


def counted(count: int, noun: str) -> str:
    """``1 text``, ``1,234 texts``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"about {duration(seconds)} left"


def _rounded(fields: dict) -> dict:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in fields.items()}


def _stage() -> str:
    from structlog.contextvars import get_contextvars

    return get_contextvars().get("stage", "")


@contextmanager
def _bar():
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("[bold]{task.fields[stage]}"), BarColumn(20),
               TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4,
                  redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=None, stage=_stage())

        def show(reading: Reading, due: bool) -> None:
            bar.update(task, completed=reading.done or 0, total=reading.total, description=str(reading))
        yield show


def _in_notebook() -> bool:
    """Whether this process runs the cells of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextmanager
def _notebook():
    """A line under the cell; a carriage return overwrites it."""
    width = 0

    def show(reading: Reading, due: bool) -> None:
        nonlocal width
        line = f"{reading}, {duration(reading.elapsed_s)} elapsed"
        print(f"\r{line:<{width}}", end="", file=sys.stderr, flush=True)
        width = len(line)
    try:
        yield show
    finally:
        print(f"\r{'':<{width}}\r", end="", file=sys.stderr, flush=True)


@contextmanager
def _lines():
    stage = _stage()
    prefix = f"{stage}: " if stage else ""

    def show(reading: Reading, due: bool) -> None:
        if due:
            _LOG.info("%s%s, %s elapsed", prefix, reading, duration(reading.elapsed_s),
                      extra={"elapsed_s": round(reading.elapsed_s, 1), **reading.fields})
    yield show
