"""The command `run`, SIGKILLed at every stage's border and in its middle: each run gets a bit further."""

import os
import shutil
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import kill_points
import pytest
import yaml
from run_helpers import NIGHT_1, NIGHT_2, files, leftovers, settings, snapshot

from dare_job.schemas import ENTITIES

pytestmark = pytest.mark.spark
WORKER = "in the middle of the second chunk that a worker writes"
BEFORE = ("plan", "embed", "group", "route", "pools")
FIRST = (  # the date is not published yet; --limit 3
    r"link .*_lock\.", r"spark .*\.input\..*users",
    *(rf"(mkdir|spark) .*\.{stage}\..*entity=item$" for stage in BEFORE),
    r"spark .*\.generate\..*/cut$", WORKER, r"open .*/generate/\._done", r"rename .*/gate$",
    r"rename .* -> .*entity=item/dt=")
BORDERS = (*(rf"mkdir .*\.{stage}\.\w+\.staging$" for stage in (*BEFORE, "generate")), WORKER,
           r"mkdir .*\.baseline\.", r"mkdir .*entity=user/\.dt=")
AGAIN = (  # published; without --limit there are more rows to write: a new cut, and publishing again
    r"remove .*\.generate\..*/part", WORKER, r"exchange .*/baseline$", r"exchange .*entity=item")
AGAIN_BORDERS = (r"exchange .*/generate$", WORKER, r"mkdir .*entity=item/\.dt=",
                 r"rmdir .*entity=item/\.dt=")


def command(gateway: tuple[str, str], arguments: list[str], dies_in_wave: int = 0) -> None:
    """The command line, in a process that uses the Java process of the tests, which is warm."""
    os.environ |= {"PYSPARK_GATEWAY_PORT": gateway[0], "PYSPARK_GATEWAY_SECRET": gateway[1],
                   "PYSPARK_PYTHON": sys.executable}
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from dare_job import cli
    from dare_job.stages import generate

    java = launch_gateway()
    spark = java.jvm.org.apache.spark
    context = spark.api.java.JavaSparkContext.fromSparkContext(spark.SparkContext.getOrCreate())
    conf = SparkConf(_jvm=java.jvm, _jconf=context.getConf())
    SparkSession(SparkContext(gateway=java, jsc=context, conf=conf)).newSession()
    if dies_in_wave:
        generate.write_shard = dying(os.getpid(), later=dies_in_wave > 1)
    sys.argv = ["dare-job", *arguments]
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code


def dying(driver: int, later: bool = False):
    """What a Spark task does, up to its second chunk; then it kills the run and goes no further.

    With ``later`` in a wave that drafts from the ones before.
    """
    def write_shard(batches, task):
        from dare_job.generate import worker

        if later and not task.wave_pools:
            yield from worker.write_shard(batches, task)
            return

        class End(BaseException):
            pass

        synced, sync = [], os.fsync

        def syncing(file: int) -> None:
            synced.append(file)
            if len(synced) == 2:
                with suppress(ProcessLookupError):
                    os.killpg(driver, signal.SIGKILL)
                raise End

        os.fsync = syncing
        try:
            yield from worker.write_shard(batches, task)
        except End:  # the worker itself, with its model loaded, serves on: Spark wants its rows taken
            deque(batches, maxlen=0)
        finally:
            os.fsync = sync
    return write_shard


@pytest.fixture
def run(spark, world, nights, tmp_path):
    """Factory: the command for the second night, killed at a point or to its end; and its output folder."""
    out = tmp_path / "out"
    for entity in ENTITIES:
        name = Path("knowledge") / f"entity={entity}" / f"dt={NIGHT_1}"
        shutil.copytree(nights.out / name, out / name)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings(
        world, out, baseline={"rows": 0}, spark={"rows_per_commit": 1, "shards": 2})))
    java = spark.sparkContext._gateway.gateway_parameters
    line = ["run", "--config", str(tmp_path / "job.yaml"), "--date", NIGHT_2]

    def start(at: str | None, *arguments: str) -> None:
        given = (out, command, (str(java.port), java.auth_token), [*line, *arguments])
        if at is None:
            kill_points.undisturbed(*given)
        elif at != WORKER:
            kill_points.killed(at, *given)
        else:
            kill_points.killed("never", *given, 1)
            quiet(spark)
    return start, out


def quiet(spark) -> None:
    """Wait for the tasks that a killed run left to Java; each ends at its second chunk."""
    while spark.sparkContext.statusTracker().getActiveJobsIds():
        time.sleep(0.05)


def content(out: Path) -> dict:
    """Texts and token ids of the date, and by which night they were written."""
    names = ("knowledge", "token_ids", "error", "text_key", "generated_dt")
    return {(entity, row["entity_id"]): tuple(row[name] for name in names)
            for entity in ENTITIES for row in snapshot(out, entity, NIGHT_2).values()}


def written_by(out: Path) -> dict:
    return {(entity, row["entity_id"]): row["source_run_id"] for entity in ENTITIES
            for row in snapshot(out, entity, NIGHT_2).values() if row["generated_dt"] == NIGHT_2}


def chunk_files(out: Path) -> dict:
    found = files(out / "_work" / f"dt={NIGHT_2}" / "generate")
    return {name: file for name, file in found.items() if name.startswith("entity=")}


@pytest.mark.release
@pytest.mark.parametrize(("first", "again"), [
    pytest.param(FIRST, AGAIN, id="within"),
    pytest.param(BORDERS, AGAIN_BORDERS, id="between")])
def test_a_run_killed_at_any_stage_ends_as_if_it_had_not_been(run, nights, first, again):
    """Within each stage, or between one and the next."""
    start, out = run
    yesterday = files(out)
    committed = {}
    for at in first:
        start(at, "--limit", "3")
        assert not (out / f"knowledge/entity=item/dt={NIGHT_2}").exists()
        committed = committed or chunk_files(out)
    start(None, "--limit", "3")
    assert chunk_files(out).items() > committed.items() > {}.items()
    assert leftovers(out) == []
    limited = content(out)
    early = written_by(out)
    committed = {}
    for at in again:
        start(at)
        assert set(content(out)) == set(limited)  # there, and every id once, at any moment
        committed = committed or (at == WORKER and chunk_files(out)) or {}
    start(None)
    assert chunk_files(out).items() > committed.items() > {}.items()
    assert leftovers(out) == []
    assert content(out) == content(nights.out) != limited
    assert written_by(out).items() > early.items() > {}.items()
    assert {name: file for name, file in files(out).items() if f"dt={NIGHT_1}" in name} == yesterday
