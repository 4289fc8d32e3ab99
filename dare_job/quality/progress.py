"""How far a pass over many rows is: a bar on a terminal, else a log line now and then."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LOG = logging.getLogger("dare_job")
_LOG_EVERY_S = 15.0

Counting = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@contextmanager
def counted(rows: int, what: str) -> Iterator[Counting]:
    """Yield a function that passes batches on and shows how many of ``rows`` went through it so far."""
    columns = (TextColumn(f"  {what}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True,
                  disable=not sys.stderr.isatty()) as bar:
        task, began = bar.add_task("", total=rows), time.monotonic()
        done, last = 0, began

        def passing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            nonlocal done, last
            for batch in batches:
                yield batch
                done += batch.num_rows
                bar.update(task, completed=done)
                now = time.monotonic()
                if bar.disable and now - last >= _LOG_EVERY_S:
                    last = now
                    _LOG.info("%s: %d of %d rows, %.0f s left", what, done, rows,
                              (rows - done) * (now - began) / done)

        yield passing
