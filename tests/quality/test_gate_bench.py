"""The gate's bench measures the command on a synthetic night."""

import json
import subprocess
import sys


def test_it_says_what_the_gate_took_and_found():
    command = [sys.executable, "-m", "dare_job.bench.gate", "--rows", "2000", "--file-rows", "500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == 2000 and found["rows_per_s"] > 0 and found["peak_mib"] > found["idle_mib"] > 50
    assert found["compared"] == 2000 and found["found"]["loop"] == 4 and found["found"]["errors"] == 0
