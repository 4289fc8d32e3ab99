"""Checks before a run that executors can import this package, read the input and write to OUT.

A local master runs tasks as children of the driver and is not checked.
"""

import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import dare_job
from dare_job import errors
from dare_job.errors import ConfigError, InfrastructureError
from dare_job.spark.session import failure_cause, is_local
from dare_job.storage import errors as storage_errors
from dare_job.storage import paths

_LOG = logging.getLogger("dare_job")
_PATIENCE_S = 30.0
_OUT = "out must be a place that every host sees under the same path, and may write"
_LOST = ("ExecutorLostFailure", "FetchFailed", "Python worker exited unexpectedly",
         "SparkContext was shut down", "Connection refused")
_PACKAGE = ("executors cannot import {0}: send dare-job and what it needs with --archives (a packed "
            "environment) or in an image, and name its Python in spark.pyspark.python "
            "(docs/how-to/operations.md)")


def check_executors(spark, folder: paths.AnyPath, inputs: Mapping[str, str | None]) -> None:
    """Check that executors can read and write ``folder``. Logs a warning while no executor is available.

    Parameters
    ----------
    inputs : paths by setting; a path on a disk that the driver sees must be visible to executors too

    Raises
    ------
    InfrastructureError : names host and cause
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    context = spark.sparkContext
    if is_local(context.master):
        return
    folder.mkdir(parents=True, exist_ok=True)
    path, seen, version = str(folder.resolve()), _names(folder), dare_job.__version__
    places = {name: paths.path(text, name) for name, text in inputs.items() if text}
    wanted = {name: str(place.absolute()) for name, place in places.items()
              if paths.is_local(place) and place.exists()}
    tasks = 2 * context.defaultParallelism

    def tried(numbers: Iterable[int]) -> Iterator[tuple[str, str]]:
        yield from host_problems(path, seen, version, wanted)

    try:
        with _saying_who_waits(context):
            found = context.parallelize(range(tasks), tasks).mapPartitions(tried).collect()
    except (PySparkException, Py4JError) as error:
        raise InfrastructureError(f"the executors of {context.master} do not work: {_why(error)}") from error
    if found:
        raise InfrastructureError("the executor on {} {}".format(*min(found)))


def host_problems(folder: str, seen: list[str], version: str, inputs: Mapping[str, str],
             settle_s: float = 90.0) -> Iterator[tuple[str, str]]:
    """Runs in a Spark task: this host, and what is wrong with it.

    folder    where the driver sees the files ``seen``
    version   the driver's of this package
    inputs    by setting: paths that the driver sees
    settle_s  how long to wait for folder and inputs: a network disk shows new files late
    """
    host, deadline = socket.gethostname(), time.monotonic() + settle_s
    if dare_job.__version__ != version:
        yield host, f"has dare-job {dare_job.__version__}, the driver {version}: send the driver's there"
    while (problem := _unusable(folder, seen) or _unseen(inputs)) and time.monotonic() < deadline:
        time.sleep(1)
    if problem:
        yield host, problem


def _unusable(folder: str, seen: list[str]) -> str | None:
    try:
        place = paths.path(folder, "out")
        if missing := sorted(set(seen) - set(_names(place))):
            return f"does not see {missing[0]} in {folder}, the driver does: {_OUT}"
        probe = place / f".{uuid.uuid4().hex}.partial"
        probe.touch()
        probe.unlink()
    except Exception as error:
        refused = storage_errors.store_message(error)
        if refused is None and not isinstance(error, OSError | ConfigError):
            raise
        return f"cannot use {folder}: {refused or error}: {_OUT}"
    return None


def _unseen(inputs: Mapping[str, str]) -> str | None:
    for name, path in inputs.items():
        if not os.access(path, os.R_OK):
            return (f"does not see {path}, the driver does, or may not read it: {name} must be a place that "
                    "every host sees under the same path")
    return None


def _names(folder: paths.AnyPath) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _why(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    for line in lines:
        if line.startswith("ModuleNotFoundError: No module named "):
            return _PACKAGE.format(line.rpartition(" ")[2].strip("'"))
        if "PYTHON_VERSION_MISMATCH" in line:
            return f"{line}: give the executors the driver's Python (spark.pyspark.python)"
    return failure_cause(error)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what ends a Spark job into one line: the error that a task raised, or the loss of its executors.

    Anything else is a fault of the program and goes through with its traceback.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise_task_error(error)
        raise_if_lost(error)
        raise


def raise_task_error(error: Exception) -> None:
    """Raise, as it was, the project's own error that a task ended Spark's job with, if one did."""
    if found := re.search(r"^dare_job\.errors\.(\w+): (.+)$", str(error), re.MULTILINE):
        raise getattr(errors, found[1])(found[2]) from error


def raise_if_lost(error: Exception) -> None:
    """Raise InfrastructureError where Spark's job ended because what ran its tasks was killed or is gone."""
    if any(sign in str(error) for sign in _LOST):
        raise InfrastructureError("Spark lost the executors or Python workers of a task too often, what was "
                                  f"finished is kept, run it again: {failure_cause(error)}") from error


@contextmanager
def _saying_who_waits(context) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=_say, args=(context, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _say(context, stop: threading.Event) -> None:
    """Spark itself would say it on a level that the console does not show."""
    began, tracker = time.monotonic(), context.statusTracker()
    while not stop.wait(_PATIENCE_S):
        with suppress(Exception):  # the session may be stopping
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            if any(stage and stage.numActiveTasks + stage.numCompletedTasks for stage in stages):
                continue
            _LOG.warning("%s has started no task for %.0f s: does it have free workers with the cores, "
                         "memory and GPUs that an executor asks for? Its web page lists them",
                         context.master, time.monotonic() - began)
