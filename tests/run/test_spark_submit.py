"""A finished night again through spark-submit: nothing is written, and the summary is the night's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_helpers import NIGHT_2, files, leftovers, settings

import dare_job

pytestmark = pytest.mark.spark
_DEADLINE_S = 240


@pytest.mark.slow
def test_spark_submit_runs_the_same_command_and_regenerates_nothing(nights, tmp_path):
    out = shutil.copytree(nights.out, tmp_path / "out")
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(settings(nights.world, out)))
    before = files(out)
    submit = Path(sys.executable).with_name("spark-submit")
    entry = Path(dare_job.__file__).with_name("__main__.py")
    done = subprocess.run(
        [submit, "--master", "local[2]", "--driver-memory", "1g", entry,
         "run", "--config", job, "--date", NIGHT_2],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=_DEADLINE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert list(summary) == ["date", "out", "written", "errors", "skipped_fresh", "accepted_per_step",
                             "busy_slots", "scored_tokens", "relaxed_tokens", "guarded_rows", "tokens_per_s",
                             "baseline_tokens_per_s", "gates", "choice", "copied", "backlog", "stopped",
                             "loss", "features"]
    assert summary == nights.second | {"out": str(out)}
    assert files(out) == before and leftovers(out) == []
