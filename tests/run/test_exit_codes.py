"""Every exit code that a scheduler acts on, made to happen by the real command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from run_helpers import NIGHT_2, settings

from dare_job import cli, errors
from dare_job.errors import InfrastructureError
from dare_job.schemas import ENTITIES, KNOWLEDGE

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """A command behind ``--config --date``, what is done to the output of a night first, and its end."""

    code: int
    arguments: list[str]
    message: str
    break_: Callable[[Path], None] = lambda out: None
    environment: tuple[tuple[str, str], ...] = ()
    inside: bool = False  # runs in this process, with the tests' Spark


def empty_texts(out: Path) -> None:
    for path in (out / "_work" / f"dt={NIGHT_2}" / "generate" / "entity=user").glob("*.parquet"):
        rows = [row | {"knowledge": ""} for row in pq.read_table(path).to_pylist()]
        pq.write_table(pa.Table.from_pylist(rows, schema=KNOWLEDGE), path)


def truncated_pool(out: Path) -> None:
    work = out / "_work" / f"dt={NIGHT_2}"
    shutil.rmtree(work / "generate")
    suffixes = work / "pools" / "entity=user" / "global" / "suffixes.npy"
    suffixes.write_bytes(suffixes.read_bytes()[:-8])


def only(stage: str, *more: str) -> list[str]:
    """Arguments that run one stage."""
    return ["run", "--from", stage, "--to", stage, *more]


CASES = {
    "done": Case(0, only("gate"), "texts passed", inside=True),
    "unknown setting": Case(2, ["run", "--set", "gates.max_shares=1"], "did you mean max_share?",
                            inside=True),
    "bad texts": Case(3, only("gate"), "texts are empty", empty_texts, inside=True),
    "bad texts, publish alone": Case(4, only("publish"), "run `dare-job run --from gate --date ", empty_texts,
                                     inside=True),
    "no input": Case(4, only("plan", "--input", "/no/such/folder"), "/no/such/folder", inside=True),
    "no Java": Case(5, only("plan", "--date", "2026-02-01"), "JAVA_HOME=/no/java",
                    environment=(("JAVA_HOME", "/no/java"),)),
    "no model": Case(6, only("gate", "--model", "/no/such/model"),
                     "model folder /no/such/model does not exist", empty_texts, inside=True),
    "damaged pool": Case(7, only("generate"), "builds them again", truncated_pool, inside=True),
}


@pytest.fixture
def night(nights, world, tmp_path):
    """Options of a command on a copy of the second night, and the copy."""
    out = tmp_path / "out"
    shutil.copytree(nights.out, out)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings(world, out)))
    return ["--config", str(tmp_path / "job.yaml"), "--date", NIGHT_2], out


@pytest.mark.parametrize("name", [*CASES][:-1] + [pytest.param([*CASES][-1], marks=pytest.mark.slow)])
def test_exit_code(name, night, monkeypatch, capsys):
    case, (options, out) = CASES[name], night
    case.break_(out)
    published = {path: path.stat().st_mtime_ns for path in (out / "knowledge").rglob("*") if path.is_file()}
    arguments = [case.arguments[0], *options, *case.arguments[1:]]
    code, said = (_inside(arguments, monkeypatch, capsys) if case.inside
                  else _outside(arguments, case.environment))
    assert (code, case.message in said) == (case.code, True), said
    errors = [line for line in said.splitlines() if line.startswith("dare-job: ")]
    assert len(errors) == (case.code > 0) and "Traceback" not in said
    assert published == {path: path.stat().st_mtime_ns for path in (out / "knowledge").rglob("*")
                         if path.is_file()}
    assert {path.parent.parent.name for path in published} >= {f"entity={entity}" for entity in ENTITIES}


@pytest.mark.parametrize("terminal", [False, True])
def test_a_log_for_machines_has_nothing_for_people_in_it(terminal, night, monkeypatch, capsys):
    """On a terminal the result is still text, on standard output."""
    monkeypatch.setattr(sys, "argv", ["dare-job", "run", *night[0], "--set", "log.format=json"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    records = [json.loads(line) for line in said.err.splitlines()]
    assert ended.value.code == 0 and {"plan", "publish"} <= {record.get("stage") for record in records}
    if terminal:
        assert f"texts generated for {NIGHT_2}" in said.out and "{" not in said.out
    else:
        assert json.loads(said.out)["date"] == NIGHT_2


@pytest.mark.parametrize("terminal", [False, True])
def test_a_dry_run_is_shown_on_a_terminal_whatever_the_log(terminal, night, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dare-job", "run", *night[0], "--dry-run", "--set", "log.format=json"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr().out
    assert ended.value.code == 0
    if terminal:
        assert "part" in out.splitlines()[0] and "{" not in out
    else:
        assert json.loads(out)["dry_run"]


def _outside(arguments: list[str], environment) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "dare_job", *arguments], capture_output=True, text=True,
                          env={**os.environ, **dict(environment)}, cwd=ROOT, timeout=240)
    return done.returncode, done.stderr


def _inside(arguments: list[str], monkeypatch, capsys) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["dare-job", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("killed", "message"), [
    (True, "Spark lost the executors or Python workers of a task too often"), (False, "host-7 has no disk")])
def test_what_ends_the_tasks_of_any_stage_is_one_line(
        spark, world, tmp_path, monkeypatch, capsys, killed, message):
    """Here the items' part of the plan: a worker that is killed each time, or one of our errors."""
    def rendered(name):
        def render(batches):
            list(batches)
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise InfrastructureError("host-7 has no disk")
            yield
        return render

    monkeypatch.setattr("dare_job.data.render.render_items", rendered)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings(world, tmp_path / "out")))
    arguments = [*only("plan"), "--config", str(tmp_path / "job.yaml"), "--date", NIGHT_2]
    code, said = _inside(arguments, monkeypatch, capsys)
    assert code == 5 and "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("dare-job: ")]
    assert message in line


def test_the_codes_are_those_of_the_documents():
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    told = {int(code) for row in rows for code in row.split(", ") if code.isdigit()}
    ended = {errors.UNEXPECTED, errors.exit_code(KeyboardInterrupt()), 128 + signal.SIGTERM}
    assert told == {case.code for case in CASES.values()} | ended
