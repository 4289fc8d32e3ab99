"""Output folders that cannot be: one line and an exit code. Errors of the program pass."""

import errno
import os
import sys
from pathlib import Path

import pytest

from dare_job import cli
from dare_job.cli import options, output
from dare_job.cli.output import writing
from dare_job.cli.result import print_result
from dare_job.errors import ConfigError, InfrastructureError


@pytest.fixture(autouse=True)
def java_has_not_ended(monkeypatch):
    """Another test's, which may be running."""
    monkeypatch.setattr(output, "_ENDS_WITHIN_S", 0.0)


def run(monkeypatch, capsys, *arguments) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["dare-job", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(("as_json", "beside"), [(True, ""), (False, "for people\n")])
def test_json_stands_alone_where_it_is_asked_for_and_a_pipe_has_a_log(capsys, as_json, beside):
    def work() -> dict:
        print("for people")
        return {"rows": 1}

    print_result(as_json, work)
    assert tuple(capsys.readouterr()) == ('{"rows": 1}\n', beside)


@pytest.mark.parametrize("below", ["", "deeper/still"])
@pytest.mark.parametrize("command", ["run", "data"])
def test_an_output_folder_that_is_a_file(monkeypatch, capsys, tmp_path, command, below):
    (tmp_path / "file").write_text("x")
    (tmp_path / "job.yaml").write_text("")
    settings = ["--config", tmp_path / "job.yaml", "--date", "2026-01-02", "--set", "log.format=text"]
    words = [command, *settings, "--out"] if command == "run" else ["data", "sample", "--save"]
    code, err = run(monkeypatch, capsys, *words, tmp_path / "file" / below)
    assert code == 2 and f"{tmp_path / 'file'} is a file" in err and err.count("\n") == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
@pytest.mark.parametrize("name", ["/proc/x", "/proc/x/y"])
def test_a_place_where_nothing_can_be_made(monkeypatch, capsys, name):
    code, err = run(monkeypatch, capsys, "data", "sample", "--save", name, "--users", "12", "--items", "8")
    assert code == 5 and "/proc/x" in err and err.count("\n") == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_the_disk_refuses_names_the_folder(tmp_path, number):
    with pytest.raises(InfrastructureError, match=os.strerror(number)) as found, writing(tmp_path):
        raise OSError(number, os.strerror(number))  # a write knows no file name
    assert str(tmp_path) in str(found.value)


def test_what_spark_reports_of_the_disk(tmp_path):
    from pyspark.errors import PySparkException

    with pytest.raises(InfrastructureError, match="No space left on device"), writing(tmp_path):
        raise PySparkException("Job aborted: java.io.IOException: No space left on device\n at ...")


@pytest.mark.parametrize("said", [
    "Lost task 0.3 in stage 1.0 (TID 4) (10.0.0.7 executor 3): ExecutorLostFailure (executor 3 exited ...)",
    "Lost task 0.3 in stage 1.0 (TID 4): org.apache.spark.SparkException: Python worker exited unexpectedly "
    "(crashed)"])
def test_what_ran_a_task_was_lost_in_any_stage(tmp_path, said):
    from py4j.protocol import Py4JError

    with pytest.raises(InfrastructureError, match="^Spark lost .* run it again: .*Lost task 0.3") as found, \
            writing(tmp_path):
        raise Py4JError("An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: "
                        f"{said}\nDriver stacktrace:")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone", "part-0.parquet"), KeyError("x"),
                                   ConnectionResetError(), ConfigError("x")])
def test_other_errors_pass(tmp_path, error):
    with pytest.raises(type(error)) as found, writing(tmp_path):
        raise error
    assert found.value is error


@pytest.mark.parametrize("day, part", [("9999-12-31", "too late"), ("10000-01-01", "not a date")])
def test_a_date_without_a_next_day(monkeypatch, capsys, tmp_path, day, part):
    (tmp_path / "job.yaml").write_text("")
    code, err = run(monkeypatch, capsys, "run", "--config", tmp_path / "job.yaml", "--date", day)
    assert code == 2 and part in err and err.count("\n") == 1


def test_the_last_date(tmp_path):
    from dare_job.data.history import end_of_day

    assert end_of_day(options.day("9999-12-30")) > 0
