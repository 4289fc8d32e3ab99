"""Two runs of the same date, as processes of their own; and one whose forerunner was killed."""

import os
import signal
import time

from fault_nights import NIGHT, PATIENCE_S, command, last_line, popen, published, require_whole

from dare_job.storage import lease


def begun(options, out):
    """A run that holds its date's lock."""
    run, deadline = popen("run", *options), time.monotonic() + PATIENCE_S
    while lease.read_owner(out / "_work" / f"dt={NIGHT}" / "_lock").get("pid") != run.pid:
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return run


def test_a_killed_runs_lock_is_taken_over_and_another_run_is_refused_till_the_date_is_whole(night, folders):
    options, out = night
    before, killed = published(out), begun(options, out)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert lease.read_owner(out / "_work" / f"dt={NIGHT}" / "_lock")["pid"] == killed.pid
    run = begun(options, out)
    try:
        code, said = command("run", *options)
        assert code == 5 and f"another command writes this date (process {run.pid}" in last_line(said), said
        assert run.poll() is None, "the run was disturbed"
        said = run.communicate(timeout=PATIENCE_S)[1]
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert f"from process {killed.pid} on " in " ".join(said.split())
    assert run.returncode == 0, said[-4000:]
    require_whole(out, folders.undisturbed)
    assert published(out) == before
