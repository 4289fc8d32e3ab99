"""Starts Spark, or takes the session that is there. Knows nothing of the job's tables."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from dare_job.config.settings import SparkSettings
from dare_job.errors import InfrastructureError
from dare_job.spark import java_messages

JAVA_VERSION = 17
_INSTALL = (f"install a JRE {JAVA_VERSION} (Debian, Ubuntu: "
            f"apt-get install openjdk-{JAVA_VERSION}-jre-headless) or set JAVA_HOME")
_TASK_FAILURES = 4  # Spark's own default everywhere but in local[N], which never retries
_REFUSED = ("No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied",
            "Mkdirs failed", "Input/output error")
# Without the second compiler Java reserves 48 MiB for compiled code, which three small nights fill.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
_LOGGING = f"-Dlog4j.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def session(settings: SparkSettings):
    """The Spark session of this process: the running one, or a new one with these settings.

    A local master gets task retries, a quick start and a quiet console. Under ``spark-submit`` master and
    memory are its business. Whatever ``settings.conf`` says wins. Raises InfrastructureError where Java
    is missing or too old, or where Spark does not start.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        builder = SparkSession.builder.appName("dare-job")
        master = _submitted_master()
        if master is None:
            require_java()
            master = with_retries(settings.master)
            builder = builder.master(master).config("spark.driver.memory", _DRIVER_MEMORY)
        for key, value in _settings(settings, master).items():
            builder = builder.config(key, value)
        active = _started(builder)
        active.sparkContext.setLogLevel("ERROR")
    else:
        for key, value in {**_SQL, **settings.conf}.items():
            if active.conf.isModifiable(key):
                active.conf.set(key, value)
    return active


_DRIVER_MEMORY = "2g"  # unless spark.conf says otherwise
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",  # the default of 10,000 suits numbers, not text
}


def is_local(master: str) -> bool:
    """True for ``local[...]``, where tasks run on the driver's own host as its children."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _submitted_master() -> str | None:
    """The master that ``spark-submit`` was told, which started Java before us; None: we start it."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # else SparkConf does not know Java's properties
    return SparkConf().get("spark.master", "local[*]")


def _settings(settings: SparkSettings, master: str) -> dict[str, str]:
    wanted = {**_SQL, "spark.speculation": "false"}
    if is_local(master):
        wanted |= {
            "spark.driver.extraJavaOptions": f"{QUICK_START} {_LOGGING}",
            "spark.driver.host": "localhost",
            "spark.sql.shuffle.partitions": "64",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
    return wanted | settings.conf


def with_retries(master: str) -> str:
    """``local[N]`` never retries a failed task; ``local[N,4]`` does. Other masters stay as they are."""
    plain = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    if not plain:
        return master
    cores = {"*": str(len(os.sched_getaffinity(0)))}.get(plain[1], plain[1] or "1")
    return f"local[{cores},{_TASK_FAILURES}]"


def require_java() -> Path:
    """Path of a Java that Spark can use. Raises InfrastructureError with one line on what to install."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "")
    if home and not java.is_file():
        raise InfrastructureError(f"Java {JAVA_VERSION} was not found in JAVA_HOME={home}: {_INSTALL}")
    if not java.is_file():
        raise InfrastructureError(f"Java {JAVA_VERSION} was not found: {_INSTALL}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if not version or int(version[1]) < JAVA_VERSION:
        found = f"Java {version[1]}" if version else "no working Java"
        raise InfrastructureError(f"{java} is {found}, Spark needs {JAVA_VERSION}: {_INSTALL}")
    return java


def _started(builder):
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        with java_messages.hidden():
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise InfrastructureError(f"Spark did not start: {failure_cause(error)}. If the process was killed, "
                                  "run the command again") from error


def failure_cause(error: Exception) -> str:
    """One line that says why Spark failed: the first one, with Java's reason where Java raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    reasons = [line for line in lines if line.startswith((": ", "Caused by: "))]
    return " ".join([lines[0], *reasons[:1]])


def refused_resource(error: Exception) -> str | None:
    """What the system refused Java, where Spark's failure says so."""
    return next((reason for reason in _REFUSED if reason in str(error)), None)
