"""The benches that start Spark by themselves, at a small size and in a process of their own."""

import json
import subprocess
import sys

import pytest

from dare_job.bench.growth import STEPS
from dare_job.bench.modes import METHODS

pytestmark = pytest.mark.release


def result(*arguments) -> dict:
    done = subprocess.run([sys.executable, "-m", "dare_job.bench", *map(str, arguments)], text=True,
                          capture_output=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("old", ["shipped", "model"])
def test_each_decoding_mode_has_a_rate(old, tmp_path):
    rows = result("modes", "--old", old, "--rows", 4, "--batch", 2, "--nodes", 4, "--repeats", 1, "--users",
                  40, "--items", 30, "--work", tmp_path)["rows"]
    assert {row["method"] for row in rows} == set(METHODS)
    assert all(row["tokens_per_s"] > 0 for row in rows)


def test_each_stage_has_a_time_and_a_peak_of_memory(tmp_path):
    measured = result("growth", "--users", 300, "--work", tmp_path)["sizes"]["300"]
    assert set(measured) == set(STEPS) - {"pools"}
