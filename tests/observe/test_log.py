"""Log records: JSON lines with the run's fields, text lines, a file for each run, and no secrets."""

import io
import json
import logging
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest

from dare_job.config.settings import JobConfig, LogSettings
from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.observe import log
from dare_job.observe.observed import observed
from dare_job.workspace import Workspace

LOG = logging.getLogger("dare_job")


def job_of(out: Path, **log_settings) -> Job:
    config = JobConfig.model_validate({"out": str(out), "log": log_settings})
    return Job(config, Workspace(out, date(2026, 1, 2)), "2026-01-02.run")


def records(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines_have_the_fields_of_the_run(fresh_loggers, capsys, tmp_path):
    other = logging.StreamHandler(io.StringIO())  # which leaves its own attributes on each record
    other.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    LOG.addHandler(other)
    with observed(job_of(tmp_path, format="json"), "plan", counted=False), log.bound(stage="plan"):
        LOG.warning("%d rows at %s", 3, "https://bob:hunter2@host", extra={"rows": 3, "entity": "user"})
        logging.getLogger("pools.store").warning("another model")
    first, pool, last = records(capsys.readouterr().err)
    assert list(first)[:7] == ["timestamp", "level", "event", "run_id", "date", "command", "stage"]
    assert first | {"timestamp": ""} == {
        "timestamp": "", "level": "warning", "event": "3 rows at https://***@host",
        "run_id": "2026-01-02.run", "date": "2026-01-02", "command": "plan", "stage": "plan",
        "entity": "user", "rows": 3}
    assert pool["event"] == "another model" and pool["stage"] == "plan"
    assert last["event"] == "plan finished" and last["exit_code"] == 0 and "stage" not in last
    file = tmp_path / "_work/dt=2026-01-02/logs/2026-01-02.run.jsonl"
    assert records(file.read_text()) == [first, pool, last]


def test_text_lines_are_the_default_and_the_file_has_the_failure_too(fresh_loggers, capsys, tmp_path):
    job = job_of(tmp_path)
    with pytest.raises(DataError), observed(job, "plan", counted=False):
        LOG.info("read", extra={"rows": 3})
        raise DataError("no such\nfile")
    with pytest.raises(ZeroDivisionError), observed(job, "plan", counted=False):
        1 / 0  # noqa: B018
    assert capsys.readouterr().err == "I read\n"  # the command line prints the errors themselves
    _, known, unknown = records((job.space.logs / "2026-01-02.run.jsonl").read_text())
    assert (known["event"], known["exit_code"], known["error"]) == ("failed: no such file", 4, "DataError")
    assert "exception" not in known
    assert unknown["exit_code"] == 1 and "1 / 0" in unknown["exception"]


def test_a_place_that_takes_no_log_file_costs_the_file_alone(fresh_loggers, capsys, tmp_path):
    (tmp_path / "_work").write_text("a file where a folder should be")
    with observed(job_of(tmp_path, format="json"), "plan", counted=False):
        LOG.info("one")
        LOG.info("two")
    assert [record["event"].rpartition(": ")[2] for record in records(capsys.readouterr().err)] == [
        "one", "the run goes on without a log file", "two", "plan finished"]


def test_where_nothing_can_be_written_only_the_command_says_so(fresh_loggers, capsys, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError), observed(job_of(tmp_path / "file", format="text"), "plan", counted=False):
        raise DataError("the folder is a file")
    assert capsys.readouterr().err == ""


def test_a_worker_warns_on_standard_error_and_writes_a_file_of_its_own(fresh_loggers, capsys, tmp_path):
    for run_id in ("run-1", "run-2"):  # a worker may outlive a run
        log.in_worker(LogSettings(format="json"), tmp_path, run_id, stage="generate", shard=7)
        LOG.info("committed")
        LOG.warning("a batch failed")
    assert [record["event"] for record in records(capsys.readouterr().err)] == ["a batch failed"] * 2
    for run_id in ("run-1", "run-2"):
        (file,) = tmp_path.glob(f"{run_id}.*-{os.getpid()}.jsonl")
        found = records(file.read_text())
        assert [record["event"] for record in found] == ["committed", "a batch failed"]
        assert all((record["run_id"], record["shard"]) == (run_id, 7) for record in found)


def _at_work(script: str, out: Path) -> subprocess.Popen:
    """A process of its own that runs the script and has printed "at work"."""
    run = subprocess.Popen([sys.executable, "-c", script, str(out)], stdout=subprocess.PIPE, text=True,
                           stderr=subprocess.DEVNULL)
    assert run.stdout.readline() == "at work\n"
    return run


def _assert_says_that_it_was_terminated(out: Path) -> None:
    last = records((out / "_work/dt=2026-01-02/logs/run.jsonl").read_text())[-1]
    assert last["exit_code"] == 143 and last["level"] == "error"


def test_a_terminated_command_says_so_and_gives_its_lock_back(tmp_path):
    """In a process of its own, with the real pipeline around a stage that takes too long."""
    script = (
        "import sys, time; from datetime import date; from pathlib import Path\n"
        "from dare_job import pipeline; from dare_job.config.settings import JobConfig\n"
        "from dare_job.job import Job\n"
        "from dare_job.observe.observed import observed; from dare_job.workspace import Workspace\n"
        "from dare_job.stages import plan\n"
        "plan.run = lambda job: (print('at work', flush=True), time.sleep(60))\n"
        "job = Job(JobConfig(out=sys.argv[1]), Workspace(Path(sys.argv[1]), date(2026, 1, 2)), 'run')\n"
        "with observed(job, 'plan'): pipeline.run_stage(job, 'plan')\n")
    run = _at_work(script, tmp_path)
    assert (tmp_path / "_work/dt=2026-01-02/_lock").exists()
    run.terminate()
    assert run.wait(30) == 143
    assert not (tmp_path / "_work/dt=2026-01-02/_lock").exists()
    _assert_says_that_it_was_terminated(tmp_path)


@pytest.mark.slow
def test_a_command_that_waits_for_spark_ends_when_it_is_terminated(tmp_path):
    """Though its job would take minutes, and though cleaning up calls Spark."""
    script = (
        "import sys, time; from datetime import date; from pathlib import Path\n"
        "from dare_job.config.settings import JobConfig; from dare_job.job import Job\n"
        "from dare_job.observe.observed import observed; from dare_job.stages import generate\n"
        "from dare_job.workspace import Workspace\n"
        "job = Job(JobConfig(out=sys.argv[1]), Workspace(Path(sys.argv[1]), date(2026, 1, 2)), 'run')\n"
        "rows = job.spark.range(4).mapInArrow(lambda batches: time.sleep(300) or batches, 'id long')\n"
        "with observed(job, 'run'), generate.small_batches(job):\n"
        "    print('at work', flush=True); rows.collect()\n")
    run = _at_work(script, tmp_path)
    time.sleep(3)  # the job is running
    run.terminate()
    assert run.wait(60) == 143
    _assert_says_that_it_was_terminated(tmp_path)
