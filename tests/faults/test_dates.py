"""Clocks and calendars: ends of months and leap days, daylight saving, a clock set back, an earlier date."""

import json
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_nights import (
    BEFORE,
    NIGHT,
    command,
    committed,
    configured,
    leftovers,
    published,
    require_whole,
)

from dare_job.data.history import end_of_day
from dare_job.schemas import ENTITIES
from dare_job.stages import plan
from dare_job.workspace import Workspace, write_json

EARLIER = "2025-12-31"
NIGHTS = ("2027-12-31", "2028-01-01", "2028-02-28", "2028-02-29", "2028-03-01", "2028-12-31", "2029-01-01")


def at(day: str, clock: str) -> int:
    return int(datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC).timestamp())


def test_each_night_follows_the_one_before_over_ends_of_months_years_and_leap_days(tmp_path):
    for entity in ENTITIES:
        for day in (*NIGHTS, "2028-02-2", "tmp"):  # no dates, and in nobody's way
            folder = tmp_path / "knowledge" / f"entity={entity}" / f"dt={day}"
            folder.mkdir(parents=True)
            if day in NIGHTS:
                write_json(folder / "_manifest.json", {"run_id": day})
    for before, night in zip(NIGHTS, NIGHTS[1:], strict=False):
        space = Workspace(tmp_path, date.fromisoformat(night))
        assert {space.previous(entity).name for entity in ENTITIES} == {f"dt={before}"}
    assert space.newest_date() == NIGHTS[-1] and space.published_dates() == list(NIGHTS)


@pytest.mark.parametrize("day", NIGHTS)
def test_a_day_ends_with_its_last_second(day):
    assert end_of_day(date.fromisoformat(day)) == at(day, "23:59:59") + 1


@pytest.mark.release
@pytest.mark.spark
def test_the_last_second_of_a_leap_day_counts_and_the_next_does_not(make_job, write_input):
    day, tomorrow = "2028-02-29", "2028-03-01"
    events = [("ann", "i1", 4.0, at(day, "23:59:59")), ("ann", "i2", 4.0, at(tomorrow, "00:00:00"))]
    folder = write_input(events, [("ann", None)], [("i1", "Toy Story", None), ("i2", "Heat", None)])
    for night, known in ((day, 1), (tomorrow, 2)):
        job = make_job({"input": {"path": str(folder)}}, night)
        plan.run(job)
        (found,) = pq.read_table(job.space.stage("plan") / "entity=user").to_pylist()
        assert (found["interactions"], "Heat" in found["prompt"]) == (known, known == 2)


@pytest.mark.release
@pytest.mark.spark
@pytest.mark.parametrize(("zone", "changes"), [
    ("America/New_York", ("2026-03-08", "2026-11-01")),
    pytest.param("Pacific/Auckland", ("2026-04-05", "2026-09-27"), marks=pytest.mark.release)])
def test_a_host_in_a_zone_that_changes_its_clocks_plans_the_same_prompts(dare_job, tmp_path, zone, changes):
    """Whole hours of the days around the changes, as timestamps without a zone, as pandas writes them."""
    day = changes[-1]
    hours = [datetime.fromisoformat(change) + timedelta(hours=hour)
             for change in changes for hour in range(-24, 48)]
    folder = tmp_path / "input"
    folder.mkdir()
    pq.write_table(pa.table({
        "user_id": [f"u{hour.hour % 5}" for hour in hours],
        "item_id": [f"i{n}" for n in range(len(hours))], "rating": [4.0] * len(hours),
        "timestamp": pa.array(hours, pa.timestamp("us"))}), folder / "interactions.parquet")
    pq.write_table(pa.table({"item_id": [f"i{n}" for n in range(len(hours))],
                             "title": [f"Film {n}" for n in range(len(hours))]}), folder / "items.parquet")
    pq.write_table(pa.table({"user_id": [f"u{n}" for n in range(5)]}), folder / "users.parquet")
    plans = {}
    assert time.tzname == ("UTC", "UTC"), "this process, and its Spark, is the one that knows no zone"
    for name in ("UTC", zone):
        out = tmp_path / name.replace("/", "-")
        options = configured(tmp_path, folder, out, day)
        only_plan = ["run", "--from", "plan", "--to", "plan", *options]
        code, said = dare_job(*only_plan) if name == "UTC" else command(*only_plan, TZ=name)
        assert code == 0, said
        plans[name] = pq.read_table(out / "_work" / f"dt={day}" / "plan" / "entity=user").sort_by("entity_id")
    assert plans[zone].equals(plans["UTC"])
    assert sum(plans[zone]["interactions"].to_pylist()) == 72 + 48


@pytest.mark.release
@pytest.mark.spark
def test_a_date_earlier_than_all_others_touches_none_of_them(finished, folders, dare_job):
    options, out = finished
    before, done = published(out, BEFORE) | published(out, NIGHT), committed(out)
    earlier = [EARLIER if word == NIGHT else word for word in options]
    code, said = dare_job("run", *earlier, "--limit", "2")
    assert code == 0, said
    assert published(out, BEFORE) | published(out, NIGHT) == before and leftovers(out) == []
    manifest = json.loads(next(out.glob(f"knowledge/entity=user/dt={EARLIER}/_manifest.json")).read_text())
    assert manifest["previous"] is None and manifest["counts"]["carried"] == 0
    assert Workspace(Path(out), date.fromisoformat(NIGHT)).newest_date() == NIGHT
    for stage in ("plan", "publish"):  # NIGHT again: its yesterday is still BEFORE
        assert dare_job("run", "--from", stage, "--to", stage, *options)[0] == 0
    require_whole(out, folders.undisturbed)
    assert committed(out) == done and published(out, NIGHT).items() <= before.items()
