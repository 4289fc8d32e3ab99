"""What `make airflow` starts for a newcomer, by the script that it runs: pages answer, DAGs are loaded."""

import os
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.request
from contextlib import closing, suppress

import pytest
from airflow_home import ROOT

pytestmark = pytest.mark.slow
_DEADLINE_S = 600


def answered(url: str) -> int | None:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return answer.status
    return None


def loaded(home) -> set[str]:
    with closing(sqlite3.connect(f"file:{home / 'airflow.db'}?mode=ro", uri=True, timeout=30)) as database:
        return {dag for (dag,) in database.execute("select dag_id from serialized_dag")}


def test_the_pages_answer_the_dags_are_loaded_and_another_terminal_speaks_to_it(tmp_path):
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
        terminal = f". {home}/env.sh; airflow pools get gpu -o plain; dare-job history --out {tmp_path}/none"
        said = subprocess.run(["sh", "-c", terminal], env=variables, capture_output=True, text=True)
        assert "jobs that have the GPUs" in said.stdout and "none" in said.stderr.splitlines()[-1]
    finally:
        os.killpg(script.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            script.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
