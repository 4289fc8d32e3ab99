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
from dare_job.spark.environment import is_local
from dare_job.spark.session import failure_cause
from dare_job.storage import errors as storage_errors
from dare_job.storage import paths

_LOG = logging.getLogger("dare_job")
_PATIENCE_S = 30.0
_OUT = "out must be under the same path on every host and writable there"
_LOST = ("ExecutorLostFailure", "FetchFailed", "Python worker exited unexpectedly",
         "SparkContext was shut down", "Connection refused")
_PACKAGE = ("executors cannot import {0}: ship dare-job and its dependencies with --archives (a packed "
            "environment) or in an image, and set spark.pyspark.python, or the driver's variable "
            "PYSPARK_PYTHON, to its Python (docs/how-to/operations.md)")


def check_executors(spark, folder: paths.AnyPath, inputs: Mapping[str, str | None]) -> None:
    """Check that executors can read and write ``folder``. Logs a warning while no executor is available.

    Parameters
    ----------
    inputs
        Paths by setting; executors must see those that exist on the driver's disk.

    Raises
    ------
    InfrastructureError
        With the host and the cause.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    context = spark.sparkContext
    if is_local(context.master):
        return
    folder.mkdir(parents=True, exist_ok=True)
    path, names, version = str(folder.resolve()), _names(folder), dare_job.__version__
    sources = {name: paths.path(text, name) for name, text in inputs.items() if text}
    required = {name: str(source.absolute()) for name, source in sources.items()
                if paths.is_local(source) and source.exists()}
    tasks = 2 * context.defaultParallelism

    def check(numbers: Iterable[int]) -> Iterator[tuple[str, str]]:
        yield from host_problems(path, names, version, required)

    try:
        with _warning_while_waiting(context):
            problems = context.parallelize(range(tasks), tasks).mapPartitions(check).collect()
    except (PySparkException, Py4JError) as error:
        raise InfrastructureError(f"the executors of {context.master} do not work: "
                                  f"{_cause(error)}") from error
    if problems:
        raise InfrastructureError("the executor on {} {}".format(*min(problems)))


def host_problems(folder: str, names: list[str], version: str, inputs: Mapping[str, str],
                  wait_s: float = 90.0) -> Iterator[tuple[str, str]]:
    """Check this host in a Spark task. Yields (hostname, problem) for each problem.

    Parameters
    ----------
    folder, names
        A folder and the names of the files that the driver sees in it.
    version
        Version of this package on the driver.
    inputs
        Paths that the driver sees, by setting.
    wait_s
        Maximum seconds to wait for folder and inputs, as a network disk shows new files late.
    """
    host, deadline = socket.gethostname(), time.monotonic() + wait_s
    if dare_job.__version__ != version:
        yield host, f"has dare-job {dare_job.__version__}, the driver {version}: install the same version"
    while (problem := _folder_problem(folder, names) or _input_problem(inputs)) and (
            time.monotonic() < deadline):
        time.sleep(1)
    if problem:
        yield host, problem


def _folder_problem(folder: str, names: list[str]) -> str | None:
    try:
        out = paths.path(folder, "out")
        if missing := sorted(set(names) - set(_names(out))):
            return f"does not see {missing[0]} in {folder}, the driver does: {_OUT}"
        probe = out / f".{uuid.uuid4().hex}.partial"
        probe.touch()
        probe.unlink()
    except Exception as error:
        refused = storage_errors.store_message(error)
        if refused is None and not isinstance(error, OSError | ConfigError):
            raise
        return f"cannot use {folder}: {refused or error}: {_OUT}"
    return None


def _input_problem(inputs: Mapping[str, str]) -> str | None:
    for name, path in inputs.items():
        if not os.access(path, os.R_OK):
            return (f"does not see {path}, the driver does, or may not read it: {name} must be under the "
                    "same path on every host")
    return None


def _names(folder: paths.AnyPath) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _cause(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    for line in lines:
        if line.startswith("ModuleNotFoundError: No module named "):
            return _PACKAGE.format(line.rpartition(" ")[2].strip("'"))
        if "PYTHON_VERSION_MISMATCH" in line:
            return (f"{line}: use the driver's Python on the executors (spark.pyspark.python, or the "
                    "driver's variable PYSPARK_PYTHON)")
    return failure_cause(error)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn the failure of a Spark job into a one-line error: the error of a task, or lost executors.

    Any other error is a bug and keeps its traceback.
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
    """Check whether a task failed with one of the project's errors.

    Raises
    ------
    DareJobError
        A task failed with one. The raised error has its class and message.
    """
    if match := re.search(r"^dare_job\.errors\.(\w+): (.+)$", str(error), re.MULTILINE):
        raise getattr(errors, match[1])(match[2]) from error


def raise_if_lost(error: Exception) -> None:
    """Check whether a Spark job failed because executors or Python workers were lost.

    Raises
    ------
    InfrastructureError
        Executors or Python workers were lost.
    """
    if any(sign in str(error) for sign in _LOST):
        raise InfrastructureError("Spark lost the executors or Python workers of a task too often; finished "
                                  f"chunks are kept, run it again: {failure_cause(error)}") from error


@contextmanager
def _warning_while_waiting(context) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=_warn_without_tasks, args=(context, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _warn_without_tasks(context, stop: threading.Event) -> None:
    """Warn while no task starts. Spark's own warning is below the console's log level."""
    began, tracker = time.monotonic(), context.statusTracker()
    while not stop.wait(_PATIENCE_S):
        with suppress(Exception):  # the session may be stopping
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            if any(stage and stage.numActiveTasks + stage.numCompletedTasks for stage in stages):
                continue
            _LOG.warning("%s has started no task for %.0f s: does it have free workers with the cores, "
                         "memory and GPUs that an executor requests? See its web page",
                         context.master, time.monotonic() - began)
