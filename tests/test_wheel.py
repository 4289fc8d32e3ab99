"""The wheel holds all that a run needs, and no benches."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def call(*command, **options) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True,
                          check=False, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Programs of an environment with the wheel; every other package comes from that of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    call(*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    venv.create(folder / "venv", symlinks=True)
    programs = folder / "venv" / "bin"
    call(*PIP, "--python", programs / "python", "install", "-q", "--no-deps", "--no-index",
         *folder.glob("*.whl"))
    place, = (folder / "venv").glob("lib/python*/site-packages")
    (place / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    kernels = (file for package in ("dare_job", "pools") for file in (ROOT / package).rglob("*.nb[ci]"))
    for kernel in kernels:  # compiled from the same sources
        if (folder := place / kernel.parent.relative_to(ROOT)).is_dir():
            shutil.copy(kernel, folder)
    return programs


def test_the_wheel_is_what_is_imported_and_has_no_benches(installed, tmp_path):
    code = ("import dare_job, importlib.util\n"
            "print(dare_job.__file__, importlib.util.find_spec('dare_job.bench'), dare_job.Pool.__module__)")
    file, bench, pool = call(installed / "python", "-c", code, cwd=tmp_path).split()
    assert Path(file).is_relative_to(installed.parent) and (bench, pool) == ("None", "dare_job.api.pool")
    assert {"py.typed", "__init__.pyi"} <= {path.name for path in Path(file).parent.iterdir()}


def test_pytest_finds_the_contract_in_the_wheel(installed, tmp_path):
    (tmp_path / "mine.py").write_text("from dare_job import DraftBatch\n\n\nclass Nothing:\n"
                                      "    def draft(self, requests, *_):\n"
                                      "        return DraftBatch.of([[]] * len(requests))\n")
    said = call(installed / "python", "-m", "pytest", "--pyargs", "dare_job.contract", "--drafter",
                "mine:Nothing", "-k", "valid or zero", cwd=tmp_path)
    assert "5 passed" in said


@pytest.mark.release
@pytest.mark.spark
def test_a_run_of_the_wheel_publishes_text(installed, tmp_path):
    call(installed / "dare-job", "data", "sample", "--save", tmp_path / "sample", "--users", 6, "--items", 8,
         cwd=tmp_path)
    said = call(installed / "dare-job", "run", "--config", ROOT / "conf" / "demo.yaml", "--input",
                tmp_path / "sample", "--out", tmp_path / "out", "--date", "2026-01-02",
                "--set", "decode.nodes=8", cwd=tmp_path)
    assert json.loads(said.splitlines()[-1])["written"] > 0
    assert list(tmp_path.glob("out/knowledge/entity=*/dt=2026-01-02/*.parquet"))
