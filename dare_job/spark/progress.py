"""Live progress of the workers, read from the files that they commit: a bar on a terminal, else log lines."""

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dare_job.files import AnyPath
from dare_job.spark.chunks import Tally, Totals

_LOG = logging.getLogger("dare_job")
_POLL_S = 0.5
_LOG_EVERY_S = 15.0


@contextmanager
def watching(folders: Iterable[AnyPath], rows: int, what: str = "writing") -> Iterator[None]:
    """Show how many of ``rows`` are committed under ``folders`` while the block runs, which is ``what``."""
    stop = threading.Event()
    show = _show_bar if sys.stderr.isatty() else _show_lines
    thread = threading.Thread(target=show, args=(Tally(folders), rows, stop, what), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def describe(totals: Totals) -> str:
    """Tokens, acceptance and rate, as far as they are known."""
    words = [f"{totals.tokens} tokens"]
    if totals.accepted_per_step is not None:
        words.append(f"{totals.accepted_per_step:.2f} accepted a step")
    if totals.busy_slots is not None:
        words.append(f"{totals.busy_slots:.0%} of the slots busy")
    if totals.tokens_per_s is not None:
        words.append(f"{totals.tokens_per_s:.0f} tokens/s a worker")
    if totals.errors:
        words.append(f"{totals.errors} errors")
    return ", ".join(words)


def _show_bar(tally: Tally, rows: int, stop: threading.Event, what: str) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"  {what}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=rows)
        while not stop.wait(_POLL_S):
            totals = tally.update()
            bar.update(task, completed=totals.rows, description=describe(totals))


def _show_lines(tally: Tally, rows: int, stop: threading.Event, what: str) -> None:
    began = last = time.monotonic()
    start = tally.update().rows
    while not stop.wait(_POLL_S):
        now = time.monotonic()
        if now - last < _LOG_EVERY_S:
            continue
        last, totals = now, tally.update()
        done = totals.rows - start
        left = f", {(rows - totals.rows) * (now - began) / done:.0f} s left" if done else ""
        _LOG.info("%s: %d of %d rows: %s%s", what, totals.rows, rows, describe(totals), left)
