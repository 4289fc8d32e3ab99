"""Command line: options, exit codes and messages, without Spark."""

import subprocess
import sys
import time

import pytest

from dare_job import cli, errors


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
    code, _, err = run(monkeypatch, capsys, "plan", "--config", missing, "--date", "2026-01-02")
    assert code == 2 and "no.yaml does not exist" in err
    assert run(monkeypatch, capsys, "run", "--nonsense")[0] == 2


@pytest.mark.parametrize("command, first, message", [
    ("route", "publish", "--from publish: for route it must be one of plan, embed, group"),
    ("plan", "grup", "--from grup: for plan it must be left out: nothing comes before")])
def test_an_impossible_first_stage_is_named_before_anything_is_done(
        monkeypatch, capsys, tmp_path, config, command, first, message):
    options = "--config", config, "--date", "2026-01-02", "--set", "log.format=text"
    code, out, err = run(monkeypatch, capsys, command, *options, "--from", first)
    assert (code, out, err) == (2, "", f"dare-job: {message}\n")
    assert not list(tmp_path.rglob("_lock")) and not list(tmp_path.rglob("_done.json"))


def test_stages_from_an_earlier_one_on_run_in_their_order(monkeypatch, capsys, config):
    done = []
    monkeypatch.setattr("dare_job.pipeline._run_stage", lambda job, name: done.append(name) or {"name": name})
    code, out, _ = run(monkeypatch, capsys, "pools", "--config", config, "--date", "2026-01-02",
                       "--from", "embed")
    assert (code, done) == (0, ["embed", "group", "route", "pools"])
    assert out.splitlines()[-1] == '{"name": "pools"}'


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
    from pools.errors import PoolError

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
    monkeypatch.setattr("dare_job.pipeline.run_stage", lambda job, *_: seen.update(job=job) or {})
    (tmp_path / "tuned.yaml").write_text("decode: {nodes: 5}\n")
    both = ("--config", config, "--config", str(tmp_path / "tuned.yaml"), "--date", "2026-01-02")
    assert run(monkeypatch, capsys, "plan", *both)[0] == 0
    assert (seen["job"].config.decode.nodes, seen["job"].config.out) == (5, str(tmp_path / "out"))
    (tmp_path / "tuned.yaml").write_text("decode: {nods: 5}\n")
    code, _, error = run(monkeypatch, capsys, "plan", *both)
    assert code == 2 and "tuned.yaml: unknown key decode.nods" in error and "job.yaml" not in error


def test_help_needs_nothing_heavy():
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-X", "importtime", "-m", "dare_job", "--help"],
                          capture_output=True, text=True, check=True)
    assert time.perf_counter() - began < 10
    commands = ("run", "plan", "gate", "publish", "sample", "show", "check", "tune")
    assert all(name in done.stdout for name in commands)
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert not loaded & {"torch", "pyspark", "pyarrow", "transformers", "numba", "pandas"}


def test_sample_writes_a_world(monkeypatch, capsys, tmp_path):
    code, out, _ = run(monkeypatch, capsys, "sample", "--out", str(tmp_path), "--users", "12", "--items", "8")
    assert code == 0 and "12 users, 8 items" in out
    assert (tmp_path / "interactions.parquet").exists()


def test_report_of_no_published_date_exits_with_4_and_names_the_command(monkeypatch, capsys, tmp_path):
    code, out, err = run(monkeypatch, capsys, "report", "--out", str(tmp_path))
    assert code == 4 and "holds no published date; run `dare-job run`" in err
    assert out == "" and err.count("\n") == 1
