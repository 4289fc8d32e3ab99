"""Command line: options, exit codes and messages, without Spark."""

import json
import subprocess
import sys
import time

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from dare_job import __version__, cli, errors
from dare_job.cli.names import renamed


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command in this process."""
    monkeypatch.setattr(sys, "argv", ["dare-job", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(f"out: {tmp_path / 'out'}\n")
    return str(path)


@pytest.mark.parametrize("arguments, message", [
    (["--date", "2026-1-2"], "--date '2026-1-2' is not a date"),
    (["--date", "2026-02-30"], "'2026-02-30' is not a date"),
    (["--date", "2026-01-02", "--set", "decode.nods=1"], "unknown key decode.nods (did you mean nodes?)"),
    (["--date", "2026-01-02", "--set", "verify.rule=loose"], "verify.rule = 'loose'"),
    (["--date", "2026-01-02", "--set", "decode.nodes"], "write it as section.key=value"),
])
def test_impossible_settings_exit_with_2_and_one_line(monkeypatch, capsys, config, arguments, message):
    code, out, err = run(monkeypatch, capsys, "run", "--config", config, *arguments)
    assert code == 2 and message in err
    assert out == "" and err.count("\n") == 1


def test_a_missing_configuration_and_an_unknown_option_exit_with_2(monkeypatch, capsys, tmp_path):
    missing = str(tmp_path / "no.yaml")
    code, _, err = run(monkeypatch, capsys, "run", "--config", missing, "--date", "2026-01-02")
    assert code == 2 and "no.yaml does not exist" in err
    assert run(monkeypatch, capsys, "run", "--nonsense")[0] == 2


@pytest.mark.parametrize("bounds, message", [
    (["--from", "publish", "--to", "route"], "--from publish --to route: publish comes after route; the o"),
    (["--from", "grup"], "--from grup: no such stage (did you mean group?); the stages are plan, embed, "),
    (["--to", "encode", "--dry-run"], "--dry-run estimates the whole run; leave out --from and --to")])
def test_an_impossible_range_of_stages_is_named_before_anything_is_done(
        monkeypatch, capsys, tmp_path, config, bounds, message):
    code, out, err = run(monkeypatch, capsys, "run", "--config", config, "--date", "2026-01-02", *bounds)
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"dare-job: {message}")
    assert not list(tmp_path.rglob("_lock")) and not list(tmp_path.rglob("_done.json"))


@pytest.mark.parametrize("bounds, stages", [
    (["--from", "embed", "--to", "pools"], "embed group route pools"),
    (["--to", "group"], "plan embed group"),
    (["--from", "encode"], "encode"), (["--from", "gate", "--to", "gate"], "gate")])
def test_a_range_of_stages_runs_in_its_order_and_prints_the_last_report(
        monkeypatch, capsys, config, bounds, stages):
    done = []
    monkeypatch.setattr("dare_job.pipeline._run_stage", lambda job, name: done.append(name) or {"name": name})
    code, out, _ = run(monkeypatch, capsys, "run", "--config", config, "--date", "2026-01-02", *bounds)
    assert (code, " ".join(done)) == (0, stages)
    assert out == f'{{"name": "{done[-1]}"}}\n'


@pytest.mark.parametrize("old, new", [
    ("plan --date D", "run --from plan --to plan --date D"),
    ("route --from=group", "run --to route --from=group"),
    ("recommend --model m --drafter=trie", "run --from recommend --to recommend --recommender m "
                                           "--recommend-drafter=trie"),
    ("sample --out s", "data sample --save s"), ("prepare amazon-books", "data prepare amazon-books"),
    ("train-drafter --out o --to=d", "drafter train --out o --save=d"), ("replay", "lab replay"),
    ("acceptance --target t", "lab acceptance --model t"),
    ("item-ids --to i", "recommender item-ids --save i"),
    ("train-recommender --model m", "recommender train --base m"), ("align --target t",
     "recommender align --recommender t"), ("evaluate-recommender", "recommender evaluate"),
    ("check --prompts p", "check --prompt-file p"), ("preview --prompts kar", "preview --prompts kar"),
    ("tune --out t.yaml", "tune --save t.yaml"), ("curve --work w", "curve --save w"),
    ("ctr --model din", "ctr --ctr-model din"), ("run --from plan", "run --from plan"),
    ("clean --out out", "clean --out out")])
def test_old_names_are_translated(old, new):
    assert renamed(old.split()) == new.split()


def test_an_old_name_works_and_names_the_new_one(monkeypatch, capsys, tmp_path):
    code, out, err = run(monkeypatch, capsys, "sample", "--out", str(tmp_path), "--users=12", "--items=8")
    assert code == 0 and "12 users, 8 items" in out
    assert err.count("\n") == 1 and f"write: dare-job data sample --save {tmp_path}" in err


@pytest.mark.parametrize(("words", "new"), [
    (("bench", "modes", "--old", "model"), "write: python -m dare_job.bench modes --old model"),
    (("check", "--model", "m", "--revision", "abc"), "NAME@REVISION"),
    (("train-drafter", "--revision=abc"), "NAME@REVISION")])
def test_an_old_name_that_is_not_translated_names_the_new_one(monkeypatch, capsys, words, new):
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 2 and new in " ".join(err.split())


@pytest.mark.parametrize("error, code", [
    (errors.ThresholdError, 3), (errors.DataError, 4), (errors.InfrastructureError, 5),
    (errors.ModelError, 6), (errors.PoolError, 7)])
def test_each_error_has_its_exit_code(monkeypatch, capsys, config, error, code):
    def fail(job):
        raise error("first\nsecond")

    monkeypatch.setattr("dare_job.pipeline.run", fail)
    arguments = "run", "--config", config, "--date", "2026-01-02", "--set", "log.format=text"
    assert run(monkeypatch, capsys, *arguments) == (code, "", "dare-job: first second\n")


def test_a_pool_error_of_the_pools_package_counts_as_ours(monkeypatch, capsys, config):
    from pools import PoolError

    def fail(job):
        raise PoolError("damaged")

    monkeypatch.setattr("dare_job.pipeline.run", fail)
    assert run(monkeypatch, capsys, "run", "--config", config, "--date", "2026-01-02")[0] == 7


def test_an_unexpected_exception_keeps_its_traceback_without_secrets(monkeypatch, capsys, config):
    def fail(job):
        raise ValueError("no answer from http://bob:hunter2@gateway")

    monkeypatch.setattr("dare_job.pipeline.run", fail)
    code, _, err = run(monkeypatch, capsys, "run", "--config", config, "--date", "2026-01-02")
    assert code == 1 and "Traceback" in err and "in fail" in err
    assert "ValueError: no answer from http://***@gateway" in err and "hunter2" not in err


def test_options_lie_over_the_file(monkeypatch, capsys, config, tmp_path):
    seen = {}
    monkeypatch.setattr("dare_job.pipeline.run", lambda job: seen.update(job=job) or {"date": job.space.dt})
    code, out, _ = run(
        monkeypatch, capsys, "run", "--config", config, "--date", "2026-01-02", "--input", "a: b",
        "--out", str(tmp_path / "o"), "--model", "m", "--limit", "3", "--set", "decode.nodes=4",
        "--set", "decode.mode=resd")
    job = seen["job"]
    assert code == 0 and out == '{"date": "2026-01-02"}\n'
    assert (job.config.input.path, job.config.out, job.config.model.name) == (
        "a: b", str(tmp_path / "o"), "m")
    assert (job.config.decode.nodes, job.config.decode.mode, job.limit) == (4, "resd", 3)


def test_a_later_configuration_wins_key_by_key(monkeypatch, capsys, config, tmp_path):
    seen = {}
    monkeypatch.setattr("dare_job.pipeline.run", lambda job, *_: seen.update(job=job) or {})
    (tmp_path / "tuned.yaml").write_text("decode: {nodes: 5}\n")
    both = ("--config", config, "--config", str(tmp_path / "tuned.yaml"), "--date", "2026-01-02")
    assert run(monkeypatch, capsys, "run", *both)[0] == 0
    assert (seen["job"].config.decode.nodes, seen["job"].config.out) == (5, str(tmp_path / "out"))
    (tmp_path / "tuned.yaml").write_text("decode: {nods: 5}\n")
    code, _, error = run(monkeypatch, capsys, "run", *both)
    assert code == 2 and "tuned.yaml: unknown key decode.nods" in error and "job.yaml" not in error


def test_help_needs_nothing_heavy():
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-X", "importtime", "-m", "dare_job", "--help"],
                          capture_output=True, text=True, check=True)
    assert time.perf_counter() - began < 10
    commands = ("run", "show", "report", "history", "diff", "clean", "check", "preview", "tune", "curve",
                "ctr", "recommender", "drafter", "data", "lab", "config")
    assert all(name in done.stdout for name in commands)
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert not loaded & {"torch", "pyspark", "pyarrow", "transformers", "numba", "pandas"}


def test_sample_writes_a_world(monkeypatch, capsys, tmp_path):
    code, out, _ = run(monkeypatch, capsys, "data", "sample", "--save", str(tmp_path), "--users", "12",
                       "--items", "8")
    assert code == 0 and "12 users, 8 items" in out
    assert (tmp_path / "interactions.parquet").exists()


def test_report_of_no_published_date_exits_with_4_and_names_the_command(monkeypatch, capsys, tmp_path):
    code, out, err = run(monkeypatch, capsys, "report", "--out", str(tmp_path))
    assert code == 4 and "has no published date; run `dare-job run`" in err
    assert out == "" and err.count("\n") == 1


def _commands(group, words=()):
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from _commands(command, (*words, name))


@pytest.mark.parametrize("words", _commands(get_command(cli.app)), ids=" ".join)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_of_every_command_fits_two_screens(words, option):
    shown = CliRunner().invoke(cli.app, [*words, option], env={"COLUMNS": "80"})
    assert shown.exit_code == 0 and len(shown.stdout.splitlines()) <= 56
    assert not [line for line in shown.stdout.splitlines() if "<list" in line and "--" in line]
    assert all("--help" in line for line in shown.stdout.splitlines() if "<bool>" in line)


@pytest.mark.parametrize("words, sentence", [
    ("run", "Stages, in order: plan, embed, group, route, pools,"),
    ("clean", "previous texts for a date that is not published yet, and for running the newest date again.")])
def test_help_wraps_paragraphs_to_the_terminal(words, sentence):
    shown = CliRunner().invoke(cli.app, [words, "-h"], env={"COLUMNS": "160"})
    assert sentence in shown.stdout


@pytest.mark.parametrize("words, message", [
    (("show", "decod"), "no setting or section decod (did you mean decode?); valid names: out, seed, "),
    (("show", "decode.nods"), "decode.nods (did you mean decode.nodes?); valid names: decode.schema, "),
    (("show", "sample.rule"), "no setting sample.rule: use sample.method"),
    (("schema", "out", "TYPO"), "no setting or section TYPO; valid names: out, seed, input, ")])
def test_an_unknown_section_of_the_settings_exits_with_2_and_the_valid_names(
        monkeypatch, capsys, words, message):
    code, out, err = run(monkeypatch, capsys, "config", *words)
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err


def test_version(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "--version")[:2] == (0, f"dare-job {__version__}\n")


def test_config_show_says_where_each_setting_comes_from(monkeypatch, capsys, config, tmp_path):
    code, out, _ = run(monkeypatch, capsys, "config", "show", "out", "decode", "--config", config,
                       "--set", "decode.nodes=4", "--json")
    found = json.loads(out)
    assert code == 0 and found["out"] == {"value": str(tmp_path / "out"), "origin": config}
    assert found["decode.nodes"] == {"value": 4, "origin": "--set"}
    assert found["decode.batch_size"]["origin"] == "default" and "log.format" not in found
    one = "config", "show", "decode.nodes", "--set", "decode.nodes=4"
    assert json.loads(run(monkeypatch, capsys, *one)[1]) == {"decode.nodes": found["decode.nodes"]}
    monkeypatch.setattr("dare_job.cli.result.prints_json", lambda as_json: as_json)
    code, out, _ = run(monkeypatch, capsys, *one)
    assert code == 0 and out.split() == ["setting", "value", "origin", "decode.nodes", "4", "--set"]


def test_config_schema_describes_every_setting(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "config", "schema", "--json")
    found = json.loads(out)
    assert code == 0 and len(found) > 90
    assert found["embed.epochs"]["default"] == 20 and found["embed.epochs"]["type"] == "integer >= 1"
