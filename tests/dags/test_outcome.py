"""What messages and exit codes of the job mean to Airflow, and the message about a late run."""

import logging
import subprocess
import sys
from datetime import date

import pytest
from airflow_home import DAGS, ROOT

from dare_job.cli import result
from dare_job.config.settings import JobConfig
from dare_job.job import Job
from dare_job.observe.observed import observed
from dare_job.workspace import Workspace

sys.path.append(str(DAGS))

from dare_dags import notify  # noqa: E402
from dare_dags.outcome import Outcome  # noqa: E402


def heard(lines) -> Outcome:
    outcome = Outcome()
    list(outcome.listen(lines))
    return outcome


@pytest.mark.parametrize(("code", "words", "retried"), [
    (1, "unexpected error", True), (2, "settings", False), (3, "quality gate", False),
    (4, "input data", False), (5, "Java, Spark, disk or device", True), (6, "model", False),
    (7, "pool files", False), (137, "", True), (None, "", True)])
def test_what_would_fail_again_ends_retries_and_the_rest_does_not(code, words, retried):
    from airflow.sdk.exceptions import AirflowFailException

    failure = heard(["dare-job: a.yaml is wrong\n", "INFO SparkContext: stopping\n"]).failure("plan", code)
    assert isinstance(failure, AirflowFailException) != retried
    meaning = f" ({words})" if words else ""
    assert str(failure) == f"plan exited with code {code}{meaning}: a.yaml is wrong"


@pytest.mark.parametrize("line", [
    "26/01/02 03:00:00 ERROR Client: diagnostics: User application exited with status 3",  # YARN
    "\t exit code: 3",  # Kubernetes
])
def test_the_exit_code_of_a_driver_in_the_cluster_is_read_from_spark_submits_lines(line):
    from airflow.sdk.exceptions import AirflowFailException

    outcome = heard([line])
    assert isinstance(outcome.failure("publish", 1, in_cluster=True), AirflowFailException)
    assert not isinstance(outcome.failure("publish", 1), AirflowFailException)  # an executor's


def test_the_last_json_line_is_the_result():
    lines = ['{"a": 1}\n', "{not json\n", '{"b": 2}\n', "26/01/02 INFO ShutdownHookManager\n"]
    assert heard(lines).result == {"b": 2}


def test_a_record_of_the_jobs_log_is_neither_a_result_nor_the_error(fresh_loggers, capsys, tmp_path):
    with observed(job(tmp_path), "publish", counted=False):
        logging.getLogger("dare_job").error("a pool is slow", extra={"rows": 3})
    records = capsys.readouterr().err.splitlines()
    assert len(records) == 2 and all(line.startswith("{") for line in records)
    result.print_json({"user": {"counts": {"rows": 3}}})
    said = capsys.readouterr().out.splitlines()
    outcome = heard([*records, *said, *records])
    assert outcome.result == {"user": {"counts": {"rows": 3}}}
    assert outcome.error is None


def test_where_the_job_crashed_its_last_record_says_why(fresh_loggers, capsys, tmp_path):
    with pytest.raises(ZeroDivisionError), observed(job(tmp_path), "plan", counted=False):
        1 / 0  # noqa: B018
    outcome = heard(capsys.readouterr().err.splitlines())
    assert str(outcome.failure("plan", 1)) == \
        "plan exited with code 1 (unexpected error): ZeroDivisionError: division by zero"


def test_what_a_command_writes_into_one_pipe_is_understood(tmp_path):
    command = [sys.executable, "-m", "dare_job", "gate", "--config", str(ROOT / "conf" / "demo.yaml"),
               "--date", "2026-01-02", "--out", str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    assert not any(line.startswith("{") for line in lines), done.stdout
    outcome = heard(lines)
    assert outcome.result is None
    assert str(outcome.failure("gate", done.returncode)) == \
        f"gate exited with code 4 (input data): {lines[-1].removeprefix('dare-job: ')}"


def test_a_late_run_is_reported(caplog):
    from airflow.api_fastapi.core_api.datamodels.dag_run import DAGRunResponse

    run = DAGRunResponse.model_construct(dag_id="dare_job_nightly", dag_run_id="scheduled__2026-01-02")
    with caplog.at_level(logging.INFO):
        notify.late(None, 12, {"dag_run": run.model_dump()})  # as airflow/models/deadline.py makes it
    assert "dare_job_nightly: scheduled__2026-01-02 has not finished after 12 h" in caplog.text


def job(out) -> Job:
    config = JobConfig.model_validate({"out": str(out), "log": {"format": "json"}})
    return Job(config, Workspace(out, date(2026, 1, 2)), "2026-01-02.run")
