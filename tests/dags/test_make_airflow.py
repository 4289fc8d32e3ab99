"""What `make airflow` starts for a newcomer, by the script that it runs: the first look succeeds."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.request
from contextlib import closing, suppress

import pytest
from airflow_home import ROOT

pytestmark = pytest.mark.release
_DEADLINE_S = 900


def answered(url: str) -> int | None:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return answer.status
    return None


def loaded(home) -> set[str]:
    with closing(sqlite3.connect(f"file:{home / 'airflow.db'}?mode=ro", uri=True, timeout=30)) as database:
        return {dag for (dag,) in database.execute("select dag_id from serialized_dag")}


def first_look(folder) -> list[str]:
    """The document's commands for another terminal, in a folder instead of ``out``; few rows are written."""
    section = (ROOT / "docs/how-to/airflow.md").read_text(encoding="utf-8").partition("## A first look")[2]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1]
    assert block.count('"2026-01-02"}') == 1 and "show out/airflow-run user:" in block
    few = block.replace('"2026-01-02"}', '"2026-01-02", "limit": 4}')
    return re.sub(r"\bout/", f"{folder}/", few).splitlines()


def in_terminal(*lines: str, variables: dict[str, str]) -> str:
    """What lines of a shell say, whose last succeeds; SQLite may refuse them for a moment."""
    deadline = time.monotonic() + 120
    while True:
        done = subprocess.run(["sh", "-c", "\n".join(lines)], env=variables, capture_output=True, text=True,
                              timeout=120)
        said = done.stdout + done.stderr
        if done.returncode == 0:
            return said
        assert "database is locked" in said and time.monotonic() < deadline, said[-4000:]


def states(home) -> set[str]:
    with closing(sqlite3.connect(f"file:{home / 'airflow.db'}?mode=ro", uri=True, timeout=30)) as database:
        return {state for (state,) in database.execute(
            "select state from dag_run where dag_id = 'dare_job_nightly'")}


def test_the_pages_answer_and_a_night_that_is_triggered_as_the_document_says_is_published(tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    script = subprocess.Popen(["sh", "conf/airflow.sh", str(tmp_path)], cwd=ROOT, start_new_session=True,
                              env={**variables, "AIRFLOW_PORT": str(port)}, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    home, deadline = tmp_path / "airflow", time.monotonic() + _DEADLINE_S
    try:
        while answered(f"http://127.0.0.1:{port}/api/v2/monitor/health") != 200 or len(loaded(home)) < 3:
            assert script.poll() is None and time.monotonic() < deadline
            time.sleep(1)
        assert loaded(home) == {"dare_job_nightly", "dare_job_tune", "dare_job_ctr_example"}
        source, trigger, list_runs, show = first_look(tmp_path)
        in_terminal(source, trigger, variables=variables)
        while (found := states(home)) != {"success"}:
            assert found <= {"queued", "running", "success"} and time.monotonic() < deadline, found
            time.sleep(1)
        assert "success" in in_terminal(source, list_runs, variables=variables)
        assert "2026-01-02" in in_terminal(source, show, variables=variables)
    finally:
        os.killpg(script.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            script.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
