"""The commands of docs/how-to/operations.md: options exist, `sh` blocks run, what is named is there."""

import os
import re
import shlex
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pyspark
import pytest
from typer.testing import CliRunner

from dare_job.cli import app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")
FAMILIES = ("config", "data", "drafter", "lab", "recommender")
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def commands(language: str) -> list[str]:
    """Lines of the document's blocks in a language, continued lines joined, comments dropped."""
    blocks = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+# .*", "", line).strip() for line in lines if line.strip()]


@lru_cache
def submit_options() -> set[str]:
    """Options of the installed spark-submit."""
    told = subprocess.run([SUBMIT, "--help"], capture_output=True, text=True, timeout=240).stderr
    found = set(re.findall(r"^ +(--[a-z-]+)", told, re.MULTILINE))
    assert len(found) > 25, told
    return found


@lru_cache
def options_of(*command: str) -> set[str]:
    plain = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    done = CliRunner().invoke(app, [*command, "--help"], env=plain)
    assert done.exit_code == 0, f"unknown command: dare-job {' '.join(command)}"
    return set(re.findall(r"--[a-z-]+", done.output))


def check_job(arguments: list[str]) -> None:
    """Raise if a command line of dare-job names an unknown command, option or file."""
    command = arguments[:2] if arguments[0] in FAMILIES else arguments[:1]
    rest = arguments[len(command):]
    assert {word for word in rest if word.startswith("--")} <= options_of(*command)
    for option, value in zip(rest, rest[1:], strict=False):
        assert option != "--config" or (ROOT / value).is_file(), value


def check_submit(arguments: list[str]) -> None:
    options, known = {}, submit_options()
    while arguments and arguments[0].startswith("--"):
        option, value, *arguments = arguments
        assert option in known, f"spark-submit has no option {option}"
        options.setdefault(option, []).append(value)
    assert all("=" in setting for setting in options.get("--conf", []))
    assert {"--master"} <= set(options)
    entry, *rest = arguments
    assert entry == "$ENTRY"
    check_job(rest)


@pytest.mark.parametrize("command", [line for line in commands("bash") + commands("sh")
                                     if line.startswith(("spark-submit", "dare-job"))])
def test_options_of_the_commands_exist(command):
    program, *arguments = shlex.split(command)
    if program == "dare-job":
        check_job(arguments)
    else:
        check_submit(arguments)


def test_there_is_a_command_for_each_kind_of_cluster():
    submits = [line for line in commands("bash") + commands("sh") if line.startswith("spark-submit")]
    masters = [re.search(r"--master '?([^\s']+)", line)[1] for line in submits]
    for master in ("local[*]", "local-cluster[", "spark://", "yarn", "k8s://"):
        assert any(found.startswith(master) for found in masters)
    for line in (line for line in submits if "--executor-cores" in line or "executor.cores" in line):
        assert "spark.task.resource.gpu.amount=1" in line and "spark.executor.resource.gpu.amount=1" in line


def test_files_and_headings_that_the_document_names_are_there():
    for path in re.findall(r"`((?:conf|tests|dare_job)/[\w./-]+)`", TEXT):
        assert (ROOT / path).exists(), path
    headings = {re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in TEXT.splitlines() if line.startswith("#")}
    for link in re.findall(r"\]\(#([\w-]+)\)", TEXT):
        assert link in headings, link


@pytest.mark.release
@pytest.mark.spark
def test_the_commands_for_one_machine_run_in_their_order(tmp_path):
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    assert "it installs everything into `.venv`" in TEXT and "`. .venv/bin/activate`" in TEXT
    activated = f". {shlex.quote(str(Path(sys.prefix) / 'bin' / 'activate'))}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = "\n".join([activated, "set -eu", *commands("sh")])
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=environment, text=True, capture_output=True,
                          timeout=1500)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    dates = sorted(path.name for path in (tmp_path / "out" / "night" / "knowledge" / "entity=user").iterdir())
    assert dates == ["dt=2026-01-01", "dt=2026-01-02", "dt=2026-01-03", "dt=2026-01-04"] or dates == [
        "dt=2026-01-02", "dt=2026-01-03", "dt=2026-01-04"]
    assert (tmp_path / "out" / "night" / "rolled-back" / "user").is_dir()
    assert "is not finished, and the run of" not in done.stderr
