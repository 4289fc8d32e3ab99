"""``dare-job lab refresh --quick`` runs whole: CTR models, policies, coefficients, and real histories."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dare_job.cli import tuning  # noqa: F401  # the options parse without the extra ctr
from dare_job.errors import ConfigError
from dare_job.evaluate.refresh.options import _shares
from dare_job.refresh import learned


def test_shares_that_are_none():
    assert _shares("--share", "0.1, 0.5") == [0.1, 0.5]
    for text in ("", "0", "1", "x", "0.3,2"):
        with pytest.raises(ConfigError, match="--share"):
            _shares("--share", text)


@pytest.mark.release
def test_a_quick_comparison(tmp_path):
    data = os.environ.get("DARE_DATA")
    extra = ["--input", str(Path(data) / "ml-latest-small.zip")] if data else []
    run = subprocess.run(
        [sys.executable, "-m", "dare_job", "lab", "refresh", "--quick", "--json", "--save",
         str(tmp_path / "value.json"), *extra], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads(run.stdout)
    rows = {(row["policy"], row["share"]): row for row in result["rows"]}
    full, changed = rows["full refresh", None], rows["all that changed", None]
    assert full["models"] == {model: changed["models"][model] | {"ours_over": {}} for model in full["models"]}
    assert full["distance_shown"] < 1e-6 < rows["frozen texts", None]["distance_shown"]
    assert full["rows_per_night"] > changed["rows_per_night"] > rows["random", 0.3]["rows_per_night"] > 0
    assert rows["value", 0.3]["distance_shown"] < rows["frozen texts", None]["distance_shown"]
    assert rows["value, LightGCN vectors", 0.3]["models"] != rows["value", 0.3]["models"]
    assert learned.read(tmp_path / "value.json").constant >= 0
    if data:
        assert result["real"]["changes"] > 100
