"""A whole Airflow (`airflow standalone`) backfills two dates, lets training follow, and tunes.

The first date is the night of the other tests, which is published already.
"""

import os
import signal
import socket
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml
from airflow_home import NIGHTLY, ROOT, chunks, files, small, wait, webhook

pytestmark = [pytest.mark.spark, pytest.mark.release]

TUNE = ["--held-out", "8", "--nodes", "4,8", "--sizes", "10", "--contexts", "8", "--depths", "6",
        "--lambdas", "4", "--batch", "8"]


@pytest.fixture(scope="module")
def standalone(airflow, killed, world, tmp_path_factory):
    """A running Airflow with a backfill of two dates, whose pool gpu has one slot.

    Its home, the output and its chunks before, the folder of tunings, and what it told.
    """
    out, tuned = str(killed.out), str(tmp_path_factory.mktemp("scheduler") / "tuned")
    latency = str(ROOT / "conf" / "latency" / "cpu-embedded.json")
    tune = {"out": out, "tuned": tuned, "latency": latency, "options": TUNE}
    settings = small(world, out, notify="told", late_h=0.01, end_date="2026-01-05",
                     params={"tuned": tuned}, tune={"schedule": None, "params": tune})
    before = chunks(killed.out)
    with webhook() as (connection, posted):
        home = airflow(settings, AIRFLOW_CONN_TOLD=connection, **one_machine(free_port()))
        home.run("pools", "set", "gpu", "1", "jobs that have the GPUs")
        home.run("dags", "reserialize")
        assert len(home.rows("select 1 from dag join serialized_dag using (dag_id)")) == 3
        # before anybody else writes to SQLite, which may refuse a command that reads first and then writes
        home.run("backfill", "create", "--dag-id", NIGHTLY, "--from-date", "2026-01-02",
                 "--to-date", "2026-01-04", "--reprocess-behavior", "completed", "--max-active-runs", "3")
        with running(home):
            yield home, killed.out, before, Path(tuned), posted


def one_machine(port: int) -> dict[str, str]:
    return {"AIRFLOW__API__PORT": str(port), "AIRFLOW__API__HOST": "127.0.0.1", "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__BASE_URL": f"http://localhost:{port}", "AIRFLOW__CORE__PARALLELISM": "3",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"}


@contextmanager
def running(home):
    process = home.start("standalone")
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_backfill_writes_each_date_once_the_one_before_is_published(standalone):
    home, out, before, *_ = standalone
    wait(lambda: finished(home, NIGHTLY) == 2, "two dates", home)
    times = {(task, date[:10]): (start, end) for task, date, start, end in home.rows(
        "select task_id, logical_date, ti.start_date, ti.end_date from task_instance ti "
        "join dag_run using (dag_id, run_id) where dag_id = ?", NIGHTLY)}
    assert times["inputs", "2026-01-03"][0] >= times["publish", "2026-01-02"][1]
    assert [path.name for path in sorted(out.glob("knowledge/entity=user/dt=*"))] == \
        ["dt=2026-01-02", "dt=2026-01-03"]
    assert chunks(out) == before and before, "a date that is published is not written again"
    assert files(out / "_work" / "dt=2026-01-03" / "generate", "_done.json")


def test_messages_report_late_runs_and_published_dates(standalone):
    _, out, _, _, posted = standalone
    wait(lambda: sum("has not finished after 0.01 h" in post["text"] for post in posted) >= 1, "a late run")
    for date in ("2026-01-02", "2026-01-03"):
        assert sum(f"{date} is published in {out}" in post["text"] for post in posted) == 1


def test_training_follows_each_published_date(standalone):
    home, *_ = standalone
    wait(lambda: finished(home, "dare_job_ctr_example") >= 1, "training", home)
    found = home.rows("select value from xcom where dag_id = 'dare_job_ctr_example' and key = 'return_value'")
    assert any("2026-01-02" in str(value) for (value,) in found)


def test_the_weekly_tuning_leaves_settings_that_a_later_night_takes(standalone):
    home, _, _, tuned, _ = standalone
    home.run_unlocked("dags", "trigger", "dare_job_tune")
    wait(lambda: finished(home, "dare_job_tune") == 1, "tuning", home)
    (file,) = tuned.iterdir()
    assert {"decode"} <= set(yaml.safe_load(file.read_text()))


def finished(home, dag: str) -> int:
    """Number of the DAG's successful runs; fails where one has failed."""
    states = [state for (state,) in home.rows("select state from dag_run where dag_id = ?", dag)]
    assert "failed" not in states, home.said()[-6000:]
    return states.count("success")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
