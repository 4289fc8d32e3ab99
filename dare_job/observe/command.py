"""Around a command that works on a date: log records with its run id, and metrics at its end, good or bad."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dare_job import errors
from dare_job.job import Job
from dare_job.observe import log, redact
from dare_job.observe.metrics import Metrics

_LOG = logging.getLogger("dare_job")


@contextmanager
def observed(job: Job, command: str, counted: bool = True) -> Iterator[None]:
    """Log the block with the run's id to standard error and its file; ``counted``: and tell Prometheus.

    A SIGTERM ends the block with exit code 143, after a last record, and with the date's lock given back.
    """
    settings = job.config.log
    log.to_stderr(settings.format)
    file = job.space.logs / f"{job.run_id}.jsonl" if settings.file else None
    fields = {"run_id": job.run_id, "date": job.space.dt, "command": command}
    with log.bound(**fields), log.to_file(file), _ended_by_sigterm():
        began, code = time.monotonic(), 0
        try:
            yield
        except BaseException as error:
            code = errors.exit_code(error)
            _failed(error, code, time.monotonic() - began)
            raise
        finally:
            _tell(job, command, code if counted else None)
        _LOG.info("%s finished", command, extra={
            "exit_code": 0, "seconds": round(time.monotonic() - began, 1), "printed": True})


def _failed(error: BaseException, code: int, seconds: float) -> None:
    known = code not in (errors.UNEXPECTED, 0)
    reason = " ".join(str(error).split()) or type(error).__name__
    _LOG.error("failed: %s", redact.text(reason), exc_info=None if known else error,
               extra={
        "exit_code": code, "error": type(error).__name__, "seconds": round(seconds, 1), "printed": True})


def _tell(job: Job, command: str, code: int | None) -> None:
    """``code``: None where the command is not counted, and has shown its progress alone."""
    try:
        if code is None:
            Metrics(job).idle()
        else:
            Metrics(job).ended(command, code)
    except Exception as error:  # of figures, which must not hide how the command ended
        _LOG.warning("no metrics of this run: %s: %s", type(error).__name__, error)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Turn a SIGTERM into SystemExit, so that the lock is given back and the end is told."""
    def end(number, frame):
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
