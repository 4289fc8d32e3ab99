"""Starts Spark or reuses the running session, and divides files among its tasks."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dare_job.config.settings import SparkSettings
from dare_job.errors import InfrastructureError
from dare_job.spark import environment
from dare_job.spark.environment import is_local

JAVA_VERSION = 17
TASK_BYTES, _FILE_COSTS_BYTES = 128 << 20, 4 << 20  # defaults of Spark's own reader
_INSTALL = (f"install a JRE {JAVA_VERSION} (Debian, Ubuntu: "
            f"apt-get install openjdk-{JAVA_VERSION}-jre-headless) or set JAVA_HOME")
_TASK_FAILURES = 4  # Spark's default, except for local[N], which never retries
_REFUSED = ("No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied",
            "Mkdirs failed", "Input/output error")
# Without the C2 compiler, Java reserves only 48 MiB for compiled code, which a few small runs fill.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
_LOGGING = f"-Dlog4j.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_RAISED = re.compile(r"^Traceback .*\n(?:[ \t].*\n)*(.+)", re.MULTILINE)  # error at the end of a traceback
# Java and Spark print these at every start.
_JAVA_WARNINGS = re.compile(
    rb"(WARNING: Using incubator modules|Using Spark's default log4j profile|Setting default log level to"
    rb"|To adjust logging level use|Picked up J|[^\n]*WARN NativeCodeLoader)[^\n]*\n")


def session(settings: SparkSettings):
    """The Spark session of this process: the running one, or a new one with these settings.

    A local master gets task retries, a quick start and a quiet console. Under ``spark-submit``, master and
    memory are not set here. ``settings.conf`` takes precedence over all defaults.

    Raises
    ------
    InfrastructureError
        Java is missing or too old, Spark does not start, or its temporary folders are not writable.
    ConfigError
        A variable of the environment does not fit (``environment.check_variables``).
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        environment.check_variables(settings)
        os.environ["PYSPARK_PYTHON"] = environment.worker_python(settings, os.environ)[1]
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable  # a notebook's variable may name jupyter
        builder = SparkSession.builder.appName("dare-job")
        master = _submitted_master()
        if master is None:
            require_java()
            environment.use_utf8_in_java()
            master = with_retries(settings.master)
            builder = builder.master(master).config("spark.driver.memory", _DRIVER_MEMORY)
        for key, value in _settings(settings, master).items():
            builder = builder.config(key, value)
        active = _start(builder)
        active.sparkContext.setLogLevel("ERROR")
    else:
        for key, value in {**_SQL, **settings.conf}.items():
            if active.conf.isModifiable(key):
                active.conf.set(key, value)
    return active


def check_environment(settings: SparkSettings) -> None:
    """Check the variables of the environment, unless Spark has started already.

    Raises
    ------
    ConfigError, InfrastructureError
        As ``environment.check_variables``.
    """
    from pyspark import SparkContext

    if SparkContext._active_spark_context is None:
        environment.check_variables(settings)


_DRIVER_MEMORY = "2g"  # unless spark.conf sets it
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Otherwise each column expression looks up its line in Python, a fifth of the time of a short run.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",  # the default of 10,000 suits numbers, not text
}


def _submitted_master() -> str | None:
    """The master of ``spark-submit``, which has already started Java; None if it was not used."""
    if environment.SUBMITTED not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # so that SparkConf knows Java's properties
    return SparkConf().get("spark.master", "local[*]")


def _settings(settings: SparkSettings, master: str) -> dict[str, str]:
    values = {**_SQL, "spark.speculation": "false"}
    if is_local(master):
        values |= {
            "spark.driver.extraJavaOptions": f"{QUICK_START} {_LOGGING}",
            "spark.driver.host": "localhost",
            "spark.sql.shuffle.partitions": "64",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
    else:
        values |= environment.executor_locale()
    return values | settings.conf


def with_retries(master: str) -> str:
    """``local[N]`` never retries a failed task; ``local[N,4]`` does. Other masters stay as they are."""
    local = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    if not local:
        return master
    cores = {"*": str(len(os.sched_getaffinity(0)))}.get(local[1], local[1] or "1")
    return f"local[{cores},{_TASK_FAILURES}]"


def require_java() -> Path:
    """Path of a Java runtime for Spark.

    Raises
    ------
    InfrastructureError
        There is none that Spark supports.
    """
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "")
    if home and not java.is_file():
        raise InfrastructureError(f"Java {JAVA_VERSION} was not found in JAVA_HOME={home}: {_INSTALL}")
    if not java.is_file():
        raise InfrastructureError(f"Java {JAVA_VERSION} was not found: {_INSTALL}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if not version or int(version[1]) < JAVA_VERSION:
        installed = f"Java {version[1]}" if version else "no working Java"
        raise InfrastructureError(f"{java} is {installed}, Spark needs {JAVA_VERSION}: {_INSTALL}")
    return java


def _start(builder):
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        with hidden_java_warnings():
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise InfrastructureError(f"Spark did not start: {failure_cause(error)}. If the process was killed, "
                                  "run the command again") from error


@contextmanager
def hidden_java_warnings() -> Iterator[None]:
    """Hide the usual warnings of a Java process that the block starts.

    Java inherits file descriptor 2 when it starts, so a pipe replaces that during the block. A thread copies
    everything but the warnings from the pipe to standard error for as long as Java runs.
    """
    terminal, (source, pipe) = os.dup(2), os.pipe()
    os.dup2(pipe, 2)
    os.close(pipe)
    threading.Thread(target=_copy_filtered, args=(source, terminal), daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)


def _copy_filtered(source: int, terminal: int) -> None:
    """Copy the output without the warnings until every process has closed the pipe."""
    while part := os.read(source, 65536):
        os.write(terminal, _JAVA_WARNINGS.sub(b"", part))


def failure_cause(error: Exception) -> str:
    """One-line cause of a Spark failure: its first line and the reason that Python or Java gives, if any."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    reasons = [line for line in lines if line.startswith((": ", "Caused by: "))]
    if lines[0].endswith("Python worker:"):
        reasons = _RAISED.findall(str(error))[-1:]
    return " ".join([lines[0], *reasons[:1]])


def refused_resource(error: Exception) -> str | None:
    """The message of a full, read-only or forbidden disk in a Spark failure; None if there is none."""
    return next((reason for reason in _REFUSED if reason in str(error)), None)


def divide(pieces: Sequence[tuple[object, int]], spark) -> list[list]:
    """Pieces of files for each task, in order: about 128 MB, or less if some task slots would have no work.

    Parameters
    ----------
    pieces
        Each with its bytes.
    """
    costs = [size + _FILE_COSTS_BYTES for _, size in pieces]
    max_bytes = min(TASK_BYTES, max(_FILE_COSTS_BYTES, sum(costs) // spark.sparkContext.defaultParallelism))
    tasks: list[list] = []
    size = max_bytes
    for (piece, _), cost in zip(pieces, costs, strict=True):
        if size >= max_bytes:
            tasks.append([])
            size = 0
        tasks[-1].append(piece)
        size += cost
    return tasks
