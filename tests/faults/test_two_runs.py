"""Two runs of the same date, as processes of their own; and one whose forerunner was killed."""

import os
import signal
import time

from fault_nights import NIGHT, PATIENCE_S, command, last_line, popen


def test_the_second_run_of_a_date_is_refused_and_a_killed_ones_lock_is_taken_over(night):
    options, out = night
    lock = out / "_work" / f"dt={NIGHT}" / "_lock"
    first = popen("run", *options)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not lock.exists():
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        code, said = command("run", *options)
        assert code == 5 and f"another command writes this date (process {first.pid}" in last_line(said), said
        assert first.poll() is None and lock.exists(), "the first run was disturbed"
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
    assert lock.exists()
    code, said = command("publish", *options)  # has nothing to publish, but takes the lock first
    assert f"left by process {first.pid}, which has ended: taken over" in " ".join(said.split())
    assert code == 4 and "run `dare-job plan`" in last_line(said), said
    assert not lock.exists()
