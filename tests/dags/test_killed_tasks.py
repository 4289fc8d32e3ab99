"""A task that is killed or timed out leaves no process running."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from airflow_home import DAGS, load_dags

sys.path.append(str(DAGS))

CHILD = """
import signal, sys, time
def end(*_):
    open(sys.argv[1], "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {CHILD!r}, sys.argv[1]])
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def started(program: str, *arguments: str) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], start_new_session=True, text=True,
                               stdout=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    return process


def test_the_driver_that_spark_submit_started_can_give_its_lock_back(tmp_path):
    from dare_dags.operators import end_group

    process = started(PARENT, str(tmp_path / "given back"))
    end_group(process)
    assert (tmp_path / "given back").exists()
    assert process.stdout.read() == "" and process.wait(10) == -15  # nobody holds the pipe any more


def test_a_process_that_does_not_end_is_killed():
    from dare_dags.operators import end_group

    process = started(STUBBORN)
    end_group(process, patience_s=0.5)
    assert process.wait(10) == -9


@pytest.mark.slow
def test_a_process_that_does_not_end_is_killed_even_if_the_task_was_killed_first():
    """As Airflow kills a task that is marked as failed: five seconds after it asked."""
    process = started(STUBBORN)
    program = ("import sys; from types import SimpleNamespace as Of; sys.path.append(sys.argv[1])\n"
               "from dare_dags.operators import end_group\n"
               "print('ready', flush=True)\n"
               "end_group(Of(pid=int(sys.argv[2]), poll=lambda: None), patience_s=1.5)")
    task = started(program, str(DAGS), str(process.pid))
    while not psutil.Process(task.pid).children():  # who will kill
        time.sleep(0.02)
    os.kill(task.pid, signal.SIGKILL)
    task.wait(10)
    assert process.poll() is None
    assert process.wait(30) == -9


@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_a_driver_in_the_cluster_is_ended_too(mode, tmp_path, monkeypatch):
    """With the provider's own hook, and a stand-in for the command `yarn`."""
    (tmp_path / "yarn").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    (tmp_path / "yarn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    connection = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": mode}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    stage = load_dags().dags["dare_job_nightly"].get_task("generate")
    stage._hook = stage._get_hook()
    stage._hook._yarn_application_id = "application_1"
    submitted = stage._hook._submit_sp = started(PARENT, str(tmp_path / "given back"))
    stage.on_kill()
    assert submitted.wait(10) in (-15, -9) and submitted.stdout.read() == ""
    assert (tmp_path / "given back").exists()
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert asked == ("application -kill application_1\n" if mode == "cluster" else "")
