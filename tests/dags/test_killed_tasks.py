"""What a task that is killed or out of time leaves running: nothing."""

import subprocess
import sys

from airflow_home import DAGS

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
