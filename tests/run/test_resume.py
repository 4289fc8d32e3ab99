"""SIGKILL of Python and Java, in plan and in generate; the same command again, and through spark-submit."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from run_helpers import NIGHT_2, files, leftovers, settings, snapshot

import dare_job
from dare_job import pipeline
from dare_job.tables import ENTITIES

pytestmark = pytest.mark.spark
_DEADLINE_S = 240


@pytest.fixture(scope="module")
def command(world, job_of, tmp_path_factory):
    """Arguments of a run, slow enough to be killed in the middle; the stages before generate are done.

    They were done after a run that was killed while Java wrote the plan.
    """
    folder = tmp_path_factory.mktemp("resume")
    sections = {"decode": {"max_new_tokens": 64, "batch_size": 1, "nodes": 0}, "baseline": {"rows": 0},
                "spark": {"master": "local[2]", "driver_memory": "1g", "rows_per_commit": 3}}
    (folder / "job.yaml").write_text(yaml.safe_dump(settings(world, folder / "out", **sections)))
    arguments = ["run", "--config", str(folder / "job.yaml"), "--date", NIGHT_2]
    killed(arguments, lambda: any((folder / "out").glob("_work/*/.plan.*/entity=user/*")))
    for stage in pipeline.STAGES[:pipeline.STAGES.index("generate")]:
        pipeline.run_stage(job_of(folder / "out", NIGHT_2, **sections), stage)
    return arguments, folder / "out"


def killed(arguments: list[str], reached) -> int:
    """Start the command and SIGKILL it with its Java process once ``reached()``; its process id."""
    run = subprocess.Popen([sys.executable, "-m", "dare_job", *arguments],
                           env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + _DEADLINE_S
    try:
        while not reached():
            assert run.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    return run.pid


def chunk_files(out: Path) -> dict:
    found = files(out / "_work" / f"dt={NIGHT_2}" / "generate")
    return {name: file for name, file in found.items() if name.startswith("entity=")}


def test_a_killed_run_goes_on_and_writes_every_id_once(command):
    arguments, out = command
    assert not chunk_files(out)
    process = killed(arguments, lambda: len(chunk_files(out)) >= 3)
    time.sleep(2)  # Python workers see the end of their pipe and stop
    before = chunk_files(out)
    assert not (out / "knowledge").exists()

    again = subprocess.run([sys.executable, "-m", "dare_job", *arguments], capture_output=True, text=True,
                           env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=_DEADLINE_S)
    assert again.returncode == 0, again.stderr[-3000:]
    assert f"left by process {process}, which has ended: taken over" in " ".join(again.stderr.split())
    summary = json.loads(again.stdout.splitlines()[-1])
    assert list(summary) == ["date", "out", "written", "errors", "skipped_fresh", "accepted_per_step",
                             "busy_slots", "scored_tokens", "relaxed_tokens", "guarded_rows", "tokens_per_s",
                             "baseline_tokens_per_s", "gates"]
    after = chunk_files(out)
    assert len(after) > len(before) and {name: after[name] for name in before} == before
    rows = [snapshot(out, entity, NIGHT_2) for entity in ENTITIES]
    assert [len(found) for found in rows] == [37, 25]
    assert summary["written"] == 60 and summary["errors"] == 2 and leftovers(out) == []


def test_spark_submit_runs_the_same_command_and_regenerates_nothing(command):
    arguments, out = command
    before = files(out)
    submit = Path(sys.executable).with_name("spark-submit")
    entry = Path(dare_job.__file__).with_name("__main__.py")
    done = subprocess.run(
        [submit, "--master", "local[2]", "--driver-memory", "1g", entry, *arguments],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=_DEADLINE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["written"] == 60
    assert files(out) == before
