"""Date, configuration files and arguments of a run."""

import json
import sys
from datetime import UTC, datetime

import pytest
from airflow_home import DAGS

sys.path.append(str(DAGS))

from dare_dags.night import Night, date_of  # noqa: E402
from dare_dags.operators import arguments  # noqa: E402

PARAMS = {"date": None, "config": ["a.yaml"], "input": None, "out": None, "model": None, "set": [],
          "limit": None, "wait_for": [], "tuned": None}


def night(**params) -> Night:
    return Night("2026-01-02", {**PARAMS, **params})


def at(day: int, hour: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, tzinfo=UTC)


@pytest.mark.parametrize(("logical", "run_after", "timezone", "date"), [
    (at(2, 2), at(3, 2), "UTC", "2026-01-02"),  # scheduled
    (at(2), at(9, 14), "UTC", "2026-01-02"),  # manual, with a date
    (at(9, 14), at(9, 14), "UTC", "2026-01-08"),  # manual, now: the current day is incomplete
    (None, at(9, 14), "UTC", "2026-01-08"),
    (at(2, 17), at(3, 17), "Asia/Tokyo", "2026-01-03"),  # 02:00 there
])
def test_a_run_writes_its_logical_date_and_no_day_that_is_not_over(logical, run_after, timezone, date):
    assert date_of(logical, run_after, timezone) == date


def test_only_given_parameters_become_arguments():
    assert night().arguments("plan", "plan") == [
        "run", "--from", "plan", "--to", "plan", "--config", "a.yaml", "--date", "2026-01-02"]
    given = night(config=["a.yaml", "b.yaml"], set=["x.y=1", "z=2"], out="/o", limit=0)
    assert given.arguments("generate", "generate") == [
        "run", "--from", "generate", "--to", "generate", "--config", "a.yaml", "--config", "b.yaml",
        "--date", "2026-01-02", "--set", "x.y=1", "--set", "z=2", "--out", "/o", "--limit", "0"]


def test_dates_end_in_the_time_zone_of_the_dag_unless_a_setting_says_otherwise(tmp_path):
    def boundary(text: str | None = "", zone: str = "Europe/Berlin", **params) -> list[str]:
        file = tmp_path / "a.yaml"
        file.unlink() if text is None else file.write_text(text)
        run = Night("2026-01-02", {**PARAMS, "config": [str(file)], **params}, zone)
        words = run.arguments("plan", "plan")
        return [word for word in words if word.startswith("input.day_boundary=")]

    assert boundary() == boundary("input: {path: /x}") == ["input.day_boundary=Europe/Berlin"]
    assert boundary("input: {day_boundary: Asia/Tokyo}") == boundary(zone="UTC") == []
    assert boundary(set=["input.day_boundary=UTC"]) == ["input.day_boundary=UTC"]
    assert boundary(None) == ["input.day_boundary=Europe/Berlin"], "the driver is in the cluster"


def test_a_run_without_a_configuration_file_says_where_to_name_one():
    with pytest.raises(ValueError, match=r"no configuration file: name one in params\.config"):
        night(config=[]).arguments("plan", "plan")


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


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_tuning_reads_the_newest_published_texts_of_users_from_a_disk_or_a_url(tmp_path, scheme):
    from airflow.sdk.exceptions import AirflowFailException
    from dare_dags.tuning import newest

    out, copies = f"{scheme}{tmp_path}/out", tmp_path / "copies"
    with pytest.raises(AirflowFailException, match="no published user texts yet"):
        newest(out, copies)
    for date, published in (("2026-01-01", True), ("2026-01-02", True), ("2026-01-03", False),
                            ("2026-13-01", True)):
        folder = tmp_path / "out" / "knowledge" / "entity=user" / f"dt={date}"
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").write_text(f"texts of {date}")
        (folder / "part-old.parquet").write_text("of another publication")
        if published:
            (folder / "_manifest.json").write_text(json.dumps({"files": {"part-0.parquet": {}}}))
    copies.mkdir()
    found = newest(out, copies)
    assert (found / "part-0.parquet").read_text() == "texts of 2026-01-02"
    assert not scheme or [path.name for path in found.iterdir()] == ["part-0.parquet"]


def test_a_run_waits_for_the_paths_of_its_date_or_for_its_input():
    assert night(wait_for=["/in/{date}/_SUCCESS"], input="/in").awaited() == ["/in/2026-01-02/_SUCCESS"]
    assert night(input="/in").awaited() == ["/in"]
    assert night().awaited() == []


def test_the_input_of_the_configuration_files_is_awaited_too(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("input: {path: /in/a}\n")
    second.write_text("out: /out\ninput: {format: parquet}\n")
    assert night(config=[str(first), str(second)]).awaited() == ["/in/a"]
    second.write_text("input: {path: '/in/{date}'}\n")
    dated = night(config=[str(first), str(second)])
    assert dated.awaited() == ["/in/2026-01-02"]
    assert dated.arguments("plan", "plan")[-2:] == ["--input", "/in/2026-01-02"], "the stage reads this one"
    assert night(config=[str(first)], input="/in").awaited() == ["/in"]
    assert night(input="/in/{date}").arguments("plan", "plan")[-2:] == ["--input", "/in/2026-01-02"]
    assert "--input" not in night(config=[str(first)]).arguments("plan", "plan")


def test_a_tuning_at_a_url_is_refused():
    with pytest.raises(ValueError, match="params.tuned = s3://b/tuned"):
        night(tuned="s3://b/tuned").arguments("plan", "plan")


def test_the_report_is_named_where_it_was_written(tmp_path):
    assert night(out=str(tmp_path)).report() is None
    page = tmp_path / "reports" / "dt=2026-01-02" / "index.html"
    page.parent.mkdir(parents=True)
    page.touch()
    assert night(out=str(tmp_path)).report() == night(out=tmp_path.as_uri()).report() == str(page)
    assert night(config=["/not/here.yaml"]).report() is None


def test_a_task_of_several_stages_is_the_last_one_from_the_first_on():
    assert arguments(night(), "group") == night().arguments("group", "group")
    assert arguments(night(), "group_and_route") == night().arguments("group", "route")


def test_recommendations_have_their_own_model_and_may_be_off():
    asked = arguments(night(model="llm", set=["recommend.model=/r"], limit=3), "recommend")
    assert asked == ["run", "--from", "recommend", "--to", "recommend", "--config", "a.yaml",
                     "--date", "2026-01-02", "--set", "recommend.model=/r", "--if-set"]


def test_a_stage_is_off_if_no_readable_configuration_sets_its_model(tmp_path):
    first, last = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("recommend: {model: /r}\n")
    last.write_text("recommend: {k: 5}\nencode:\n")
    both = [str(first), str(last)]
    assert not night(config=both).is_unset("recommend.model") and night(config=both).is_unset("encode.model")
    assert night(config=both, set=["recommend.model=null"]).is_unset("recommend.model")
    assert not night(config=both, set=["encode.model=null", "encode.model=embedded"]).is_unset("encode.model")
    last.write_text("recommend: {model: null}\n")
    assert night(config=both).is_unset("recommend.model")
    assert not night(config=["/not/here.yaml"]).is_unset("recommend.model")  # unknown
