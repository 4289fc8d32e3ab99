"""A night's date, configuration files and arguments; what a command's words and exit code mean."""

import sys
from datetime import UTC, datetime

import pytest
from airflow_home import DAGS

sys.path.append(str(DAGS))

from dare_dags.night import Night, night_of  # noqa: E402
from dare_dags.outcome import Outcome  # noqa: E402

PARAMS = {"date": None, "config": ["a.yaml"], "input": None, "out": None, "model": None, "set": [],
          "limit": None, "wait_for": [], "tuned": None}


def night(**params) -> Night:
    return Night("2026-01-02", {**PARAMS, **params})


def at(day: int, hour: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, tzinfo=UTC)


@pytest.mark.parametrize(("logical", "run_after", "timezone", "date"), [
    (at(2, 2), at(3, 2), "UTC", "2026-01-02"),  # of the schedule
    (at(2), at(9, 14), "UTC", "2026-01-02"),  # by hand, with a date
    (at(9, 14), at(9, 14), "UTC", "2026-01-08"),  # by hand, now: today is not over
    (None, at(9, 14), "UTC", "2026-01-08"),
    (at(2, 17), at(3, 17), "Asia/Tokyo", "2026-01-03"),  # 02:00 there
])
def test_a_run_writes_its_logical_date_and_no_day_that_is_not_over(logical, run_after, timezone, date):
    assert night_of(logical, run_after, timezone) == date


def test_only_given_parameters_become_arguments():
    assert night().arguments("plan") == ["plan", "--config", "a.yaml", "--date", "2026-01-02"]
    given = night(config=["a.yaml", "b.yaml"], set=["x.y=1", "z=2"], out="/o", limit=0).arguments("generate")
    assert given == ["generate", "--config", "a.yaml", "--config", "b.yaml", "--date", "2026-01-02",
                     "--set", "x.y=1", "--set", "z=2", "--out", "/o", "--limit", "0"]


def test_a_run_without_a_configuration_file_says_where_to_name_one():
    with pytest.raises(ValueError, match=r"no configuration file: name one in params\.config"):
        night(config=[]).arguments("plan")


def test_the_newest_tuning_from_before_the_date_is_the_last_configuration(tmp_path):
    for name in ("2025-12-21", "2026-01-01", "2026-01-02", "2026-01-09"):
        (tmp_path / f"{name}.yaml").touch()
    (tmp_path / ".2026-01-01.yaml.partial").touch()
    assert night(tuned=str(tmp_path)).configs() == ["a.yaml", str(tmp_path / "2026-01-01.yaml")]
    assert night(tuned=str(tmp_path / "none")).configs() == ["a.yaml"]


def test_the_output_folder_is_the_parameter_or_what_the_last_file_says(tmp_path):
    files = [tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml")]
    for file, text in zip(files, ("out: /one", "out: /two", "input: {path: /in}"), strict=True):
        file.write_text(text)
    assert night(config=list(map(str, files))).out() == "/two"
    assert night(config=list(map(str, files)), out="/three").out() == "/three"
    assert night(config=["/not/here.yaml"]).out() is None


def test_a_run_waits_for_the_paths_of_its_date_or_for_its_input():
    assert night(wait_for=["/in/{date}/_SUCCESS"], input="/in").awaited() == ["/in/2026-01-02/_SUCCESS"]
    assert night(input="/in").awaited() == ["/in"]
    assert night().awaited() == []


@pytest.mark.parametrize(("code", "words", "retried"), [
    (1, "unexpected error", True), (2, "settings", False), (3, "too many rows failed", False),
    (4, "input data", False), (5, "Java, Spark or disk", True), (6, "model", False), (7, "pools", False),
    (137, "", True), (None, "", True)])
def test_what_would_fail_again_ends_retries_and_the_rest_does_not(code, words, retried):
    from airflow.sdk.exceptions import AirflowFailException

    outcome = Outcome()
    assert list(outcome.listen(["dare-job: a.yaml is wrong\n", "INFO SparkContext: stopping\n"]))
    failure = outcome.failure("plan", code)
    assert isinstance(failure, AirflowFailException) != retried
    meaning = f" ({words})" if words else ""
    assert str(failure) == f"plan ended with exit code {code}{meaning}: a.yaml is wrong"


@pytest.mark.parametrize("line", [
    "26/01/02 03:00:00 ERROR Client: diagnostics: User application exited with status 3",  # YARN
    "\t exit code: 3",  # Kubernetes
])
def test_the_exit_code_of_a_driver_in_the_cluster_is_read_from_spark_submits_lines(line):
    from airflow.sdk.exceptions import AirflowFailException

    outcome = Outcome()
    list(outcome.listen([line]))
    assert isinstance(outcome.failure("publish", 1, in_cluster=True), AirflowFailException)
    assert not isinstance(outcome.failure("publish", 1), AirflowFailException)  # an executor's


def test_the_last_json_line_is_the_result():
    outcome = Outcome()
    list(outcome.listen(['{"a": 1}\n', "{not json\n", '{"b": 2}\n', "26/01/02 INFO ShutdownHookManager\n"]))
    assert outcome.result == {"b": 2}
