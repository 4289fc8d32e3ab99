"""Logging and metrics of a command that works on a date, from its start to its success or failure."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dare_job import errors
from dare_job.job import Job
from dare_job.observe import log, redact
from dare_job.observe.metrics import Metrics

_LOG = logging.getLogger("dare_job")
_AGAIN_S = 5.0  # after SIGTERM during a call of Spark that is no job


@contextmanager
def observed(job: Job, command: str, counted: bool = True) -> Iterator[None]:
    """Log the block with the run's id to standard error and the run's file; report its end to Prometheus.

    ``counted=False`` leaves out the metrics of finished commands. SIGTERM ends the block with exit code 143,
    after a last log record and after the date's lock is released.
    """
    settings = job.config.log
    log.to_stderr(settings.format)
    file = job.space.logs / f"{job.run_id}.jsonl"
    fields = {"run_id": job.run_id, "date": job.space.dt, "command": command}
    with log.bound(**fields), log.to_file(file):
        began, code = time.monotonic(), 0
        try:
            with _ended_by_sigterm():
                yield
        except BaseException as error:
            code = errors.exit_code(error)
            _failed(error, code, time.monotonic() - began)
            raise
        finally:
            _report(job, command, code if counted else None)
        _LOG.info("%s finished", command, extra={
            "exit_code": 0, "seconds": round(time.monotonic() - began, 1), "printed": True})


def _failed(error: BaseException, code: int, seconds: float) -> None:
    known = code not in (errors.UNEXPECTED, 0)
    reason = " ".join(str(error).split()) or type(error).__name__
    _LOG.error("failed: %s", redact.text(reason), exc_info=None if known else error,
               extra={
        "exit_code": code, "error": type(error).__name__, "seconds": round(seconds, 1), "printed": True})


def _report(job: Job, command: str, code: int | None) -> None:
    """Report the end of a command to Prometheus; ``code=None``: only reset its progress metrics."""
    try:
        if code is None:
            Metrics(job).idle()
        else:
            Metrics(job).ended(command, code)
    except Exception as error:  # metrics must not hide how the command ended
        _LOG.warning("the metrics of this run were not written: %s: %s", type(error).__name__, error)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that locks are released and the end is logged.

    An exception in the middle of a call of Spark leaves its answer on the connection, and the next call, such
    as one that cleans up, waits for it: until the job has ended. So SIGTERM cancels the jobs instead, and
    what that call raises becomes SystemExit.
    """
    came, over = threading.Event(), threading.Event()

    def end(number, frame):
        if not _calls_spark(frame):
            sys.exit(128 + number)
        came.set()
        threading.Thread(target=cancel, args=(number,), daemon=True).start()

    def cancel(number):
        if context := sys.modules["pyspark"].SparkContext._active_spark_context:
            context.cancelAllJobs()
        if not over.wait(_AGAIN_S):
            os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Exception:
        if came.is_set():
            sys.exit(128 + signal.SIGTERM)
        raise
    finally:
        over.set()
        signal.signal(signal.SIGTERM, before)


def _calls_spark(frame: FrameType | None) -> bool:
    """Whether a frame is within a call of py4j, which waits for an answer of Spark."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("py4j."):
            return True
        frame = frame.f_back
    return False
