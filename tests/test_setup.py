"""What conf/setup.sh asks pip for, in a folder whose .venv has a stand-in for Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def setup(tmp_path):
    """Runs the script; returns what pip had to install, None for nothing."""
    (tmp_path / "conf").mkdir()
    for name in ("pyproject.toml", "conf/constraints.txt", "conf/setup.sh"):
        shutil.copy(ROOT / name, tmp_path / name)
    python, calls = tmp_path / ".venv" / "bin" / "python", tmp_path / "calls"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho \"$@\" >>{calls}\n")
    python.chmod(0o755)

    def run(*arguments: str) -> str | None:
        calls.write_text("")
        subprocess.run(["sh", "conf/setup.sh", *arguments], cwd=tmp_path, check=True,
                       env={**os.environ, "DARE_NO_APT": "1"})
        asked = [line.split(" -e ")[1] for line in calls.read_text().splitlines() if " -e " in line]
        return asked[0] if asked else None
    return run


def test_extras_are_added_to_those_that_are_there(setup):
    assert setup("cpu", "encode") == ".[cpu,encode]"
    assert setup("cpu", "gguf,encode") == ".[cpu,encode,gguf]"
    assert setup("cpu") is None and setup("cpu", "gguf") is None and setup("cpu", "encode,gguf") is None
    assert setup("gpu", "s3") == ".[gpu,s3]"
    assert setup("cpu", "s3") == ".[cpu,s3]"  # the packages of the other device were replaced


def test_make_install_passes_its_extras():
    command = ["make", "-n", "install", "DEVICE=cpu", "EXTRAS=encode,gguf"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "conf/setup.sh cpu encode,gguf" in shown
