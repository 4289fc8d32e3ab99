"""Hides the warnings that Java and Spark print at every start."""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_WARNINGS = re.compile(
    rb"(WARNING: Using incubator modules|Using Spark's default log4j profile|Setting default log level to"
    rb"|To adjust logging level use|Picked up J|[^\n]*WARN NativeCodeLoader)[^\n]*\n")


@contextmanager
def hidden() -> Iterator[None]:
    """Hide the warnings of a Java process that the block starts, if standard error is a terminal.

    Java inherits file descriptor 2 when it starts, so a pipe replaces that during the block. A thread copies
    everything but the warnings from the pipe to the terminal for as long as Java runs.
    """
    if not sys.stderr.isatty():
        yield
        return
    terminal, (source, pipe) = os.dup(2), os.pipe()
    os.dup2(pipe, 2)
    os.close(pipe)
    threading.Thread(target=_copy, args=(source, terminal), daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)


def _copy(source: int, terminal: int) -> None:
    """Copy the output without the warnings until every process has closed the pipe."""
    while part := os.read(source, 65536):
        os.write(terminal, _WARNINGS.sub(b"", part))
