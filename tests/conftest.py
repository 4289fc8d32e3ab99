"""Fixtures of all tests: one Spark session for the whole run, stores, jobs and small inputs."""

import gc
import logging
import os
import re
import subprocess
import sys
from datetime import date
from functools import cache
from pathlib import Path

import hdfs_server
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import quick_java
import structlog

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where it is set, each of the hundreds of processes that tests start compiles all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["COLUMNS"] = "160"  # width of help and tables, whatever the terminal

from dare_job import schemas  # noqa: E402
from dare_job.cli import output as cli_output  # noqa: E402
from dare_job.config.settings import JobConfig, SparkSettings  # noqa: E402
from dare_job.job import Job  # noqa: E402
from dare_job.workspace import Workspace  # noqa: E402

cli_output._ENDS_WITHIN_S = 0.2  # of a Java that is being killed; here it lives on, and each error waits

TESTS = Path(__file__).parent
_ONE_WORKER = ("tests/run/", "tests/faults/", "tests/dags/")  # the longest first


def pytest_configure(config):
    """Compile the engine's kernels while parallel workers start: each would compile all of them itself.

    Processes that run tests collect no garbage until the tests start.
    """
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        subprocess.Popen([sys.executable, TESTS / "quick_workers.py", "compile"])
    else:
        gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark cases beyond ``fast_cases`` as slow. Run slow tests first, so that two workers finish at about the
    same time.
    """
    for cases in _by_function(items):
        mark = cases[0].get_closest_marker("fast_cases")
        fast = {len(cases) * place // mark.args[0] for place in range(mark.args[0])} if mark else ()
        for place, item in enumerate(cases):
            if mark and place not in fast:
                item.add_marker("slow")

    def turn(item):
        others = [not item.nodeid.startswith(folder) for folder in _ONE_WORKER]
        return item.get_closest_marker("spark") is None, others

    items.sort(key=turn)


def _by_function(items) -> list[list]:
    """Items of one test function each that no other mark makes slow, in order."""
    found: dict = {}
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("slow", "release")):
            found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return list(found.values())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep the tests of a file in one worker, and those of folders that share expensive runs.

    Of the fast tests, all that share the Spark session are kept in one: a second Java takes a minute of CPU
    time. Most slow tests start a Java of their own, so two workers share them.
    """
    from xdist.scheduler import LoadFileScheduling

    fast = config.option.markexpr.startswith("not slow")

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            folder = next((folder for folder in _ONE_WORKER if nodeid.startswith(folder)), None)
            return "Spark" if fast and (folder or _uses_spark(file)) else folder or file

    return Scheduling(config, log)


@cache
def _uses_spark(file: str) -> bool:
    return re.search(r"mark\.spark|\b(spark|make_job|job_of|any_store)\b[,)]",
                     (TESTS.parent / file).read_text("utf-8")) is not None


def pytest_collection_finish(session):
    gc.freeze()  # modules and tests live to the end; they are not searched again and again
    gc.enable()
    if any(item.get_closest_marker("spark") for item in session.items):
        quick_java.use()


@pytest.fixture(autouse=True)
def one_thread():
    """Use one torch thread, whatever earlier tests set: threads of two processes wait for each other."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def spark():
    """A local session of two cores, shared by all tests because starting one takes seconds.

    A command that a test ran in this process before may have left a session with other settings.
    """
    from pyspark.sql import SparkSession

    from dare_job.spark.session import session

    if left := SparkSession.getActiveSession():
        left.stop()
    running = session(SparkSettings(master="local[2]", conf={
        "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2",
        "spark.python.daemon.module": "quick_workers", "spark.executorEnv.PYTHONPATH": str(TESTS)}))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def store(spark):
    """URL of an empty bucket on a local S3 server that this process and Spark's workers can reach."""
    import s3_server

    with s3_server.running(spark) as url:
        yield url


@pytest.fixture(scope="module", params=["s3", *(f"hdfs-{kind}" for kind in hdfs_server.KINDS)])
def any_store(request, spark, tmp_path_factory):
    """URL of an empty folder on each kind of store, which this process and Spark's workers can reach."""
    if request.param == "s3":
        yield request.getfixturevalue("store")
        return
    with hdfs_server.running(request.param[5:], spark, tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture(scope="session")
def job_in(spark):
    """Factory of jobs with an output folder, for nights that several tests share."""
    def make(out: Path, settings: dict | None = None, day: str = "2026-01-02", model: str = "model-1", **job
             ) -> Job:
        config = JobConfig.model_validate({"out": str(out), **(settings or {})})
        made = Job(config, Workspace(Path(config.out), date.fromisoformat(day)), "run-1", **job)
        made.__dict__.update(spark=spark, model_hash=model)  # the values of cached properties
        return made
    return make


@pytest.fixture
def make_job(job_in, tmp_path):
    """Factory of jobs in the test's folder, from settings as a nested dict, a date and a model hash."""
    def make(settings: dict | None = None, day: str = "2026-01-02", model: str = "model-1", **job) -> Job:
        return job_in(tmp_path / "out", settings, day, model, **job)
    return make


@pytest.fixture(scope="session")
def write_tables():
    """Writes Parquet input from rows of interactions, users and items to a folder, which is returned."""
    def write(folder: Path, interactions: list[tuple], users: list[tuple] = (),
              items: list[tuple] = ()) -> Path:
        folder.mkdir(exist_ok=True)
        for table, schema, rows in (("interactions", schemas.INTERACTIONS, interactions),
                                    ("users", schemas.USERS, users), ("items", schemas.ITEMS, items)):
            columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            pq.write_table(pa.table(arrays, schema=schema), folder / f"{table}.parquet")
        return folder
    return write


@pytest.fixture
def write_input(tmp_path, write_tables):
    """Factory of Parquet input in the test's folder, from rows of interactions, users and items."""
    def write(interactions: list[tuple], users: list[tuple] = (), items: list[tuple] = (),
              name: str = "input") -> Path:
        return write_tables(tmp_path / name, interactions, users, items)
    return write


@pytest.fixture
def job_log():
    """Warnings and errors of the job's log, in order."""
    found, log = [], logging.getLogger("dare_job")
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())
    log.addHandler(handler)
    yield found
    log.removeHandler(handler)


@pytest.fixture
def fresh_loggers():
    """The job's loggers as in a new process, without handlers and bound fields; restored after the test."""
    loggers = [logging.getLogger(name) for name in ("dare_job", "pools")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers[:] = []
    structlog.contextvars.clear_contextvars()
    yield
    structlog.contextvars.clear_contextvars()
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate
