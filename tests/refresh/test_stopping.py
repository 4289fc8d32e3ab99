"""The deadline of a run: fixed when it first starts, with time for what comes after decoding."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dare_job.errors import ConfigError
from dare_job.generate import baseline, estimate, shard_plan
from dare_job.refresh import stopping, words
from dare_job.stages import generate
from dare_job.tables import chunk_files
from dare_job.tables.chunk_files import Totals
from dare_job.workspace import write_json

BEFORE = "2026-01-01"


@pytest.fixture
def at(monkeypatch):
    """Factory: sets the clock to a time of 2026-01-03 (UTC), or of another day of that month."""
    def set_clock(hour: int, minute: int = 0, day: int = 3) -> float:
        moment = datetime(2026, 1, day, hour, minute, tzinfo=UTC)
        monkeypatch.setattr(stopping, "datetime", type("Clock", (), {"now": lambda _: moment}))
        return moment.timestamp()
    return set_clock


@pytest.fixture
def job(make_job):
    return make_job({"refresh": {"deadline": "05:00 UTC"}, "spark": {"rows_per_commit": 8}})


def publish(job, day=BEFORE, **manifest):
    for entity in ("user", "item"):
        folder = job.space.knowledge(entity, day)
        folder.mkdir(parents=True)
        (folder / "_manifest.json").write_text(json.dumps({"date": day, "run_id": "r", **manifest}))


def test_a_run_that_is_resumed_keeps_its_deadline_and_the_next_one_has_its_own(job, at):
    five = at(5)
    at(3)
    stopping.fix_deadline(job)
    at(5, 10)  # killed in between, before anything was written
    stopping.fix_deadline(job)
    folder = job.space.stage("generate") / "entity=user"
    folder.mkdir(parents=True)
    write_json(folder.parent / "_cut.json", {})  # killed after the shard plan
    chunk_files.write(folder / "kept-00000.parquet", [])
    with pytest.raises(ConfigError, match="'05:00 UTC' of this run is over, and no text of 2026-01-02"):
        stopping.require_future(job)
    chunk_files.write(folder / chunk_files.name(0, 0), [{"entity_id": "u1", "run_id": "r"}])
    stopping.require_future(job)  # with texts, it publishes them
    assert stopping.seconds_left(job) == 0
    assert stopping.set_stop(job, job.space.stage("generate"), 2, 0.0) == stopping.Stop(
        five, stopping.DEADLINE)
    stopping.forget_deadline(job)
    assert stopping.seconds_left(job) == (23 * 60 + 50) * 60


def test_a_deadline_that_is_over_for_a_day_is_not_that_of_the_next_run(job, at):
    """As of a run that was killed and never resumed."""
    at(3)
    stopping.fix_deadline(job)
    at(4, 59, day=4)
    stopping.fix_deadline(job)
    assert stopping.seconds_left(job) == 0
    at(5, 1, day=4)
    stopping.fix_deadline(job)
    assert stopping.seconds_left(job) == (23 * 60 + 59) * 60


@pytest.mark.parametrize("limits", [{"deadline": "05:00 UTC"}, {"max_worker_hours": 2.0}])
def test_a_run_that_has_stopped_is_not_started_again_until_it_ends_or_its_limits_change(make_job, at, limits):
    at(3)
    job, more = make_job({"refresh": limits}), make_job({"refresh": {"max_worker_hours": 3.0}})
    stopping.fix_deadline(job)
    stopping.keep_stopped(job)
    assert not stopping.has_stopped(job)  # of other rows: no worker recorded a stop
    job.space.stage("generate").mkdir(parents=True)
    stopping.record_stop(job.space.stage("generate"), stopping.DEADLINE)
    assert stopping.has_stopped(job) and not stopping.has_stopped(more)
    at(6)
    stopping.require_future(job)  # it may have stopped before its first row
    at(4, 59, day=4 if "deadline" in limits else 3)
    assert stopping.has_stopped(job)
    at(5, 1, day=4)
    assert not stopping.has_stopped(job)
    at(3)
    stopping.forget_deadline(job)
    assert not stopping.has_stopped(job)


def test_another_setting_is_another_deadline(job, make_job, at):
    at(3)
    stopping.fix_deadline(job)
    later = make_job({"refresh": {"deadline": "06:00 UTC"}})
    stopping.fix_deadline(later)
    assert stopping.seconds_left(later) == 3 * 3600


def test_time_for_the_stages_after_decoding_is_that_of_the_previous_run(job, at):
    """Encode and recommend end after the manifest is written; the log folder of their date has their time."""
    now = at(3)
    publish(job, seconds={"gate": 60, "publish": 120, "generate": 7000},
            baseline={"rows": 16, "workers": 2}, baseline_span=[100.0, 500.0],
            settings={"encode": {"model": "e5"}, "recommend": {"model": None}})
    logs = job.space.work.parent / f"dt={BEFORE}" / "logs"
    logs.mkdir(parents=True)
    write_json(logs / "seconds.json", {"encode": 3600, "recommend": 50, "gate": 1})
    stopping.fix_deadline(job)
    stop = stopping.set_stop(job, job.space.stage("generate"), 2, 0.0)
    assert stop.at == pytest.approx(now + 2 * 3600 - 1.2 * (60 + 120 + 3600))
    assert stopping.has_time_for_baseline(job, 9000.0, 8)  # 480 of 2,664 seconds
    assert stopping.has_time_for_baseline(job, 0.0, 8 * 5)  # five times as many rows: 2,400 seconds
    assert not stopping.has_time_for_baseline(job, 0.0, 8 * 6)
    at(3, 40)  # 264 seconds
    assert not stopping.has_time_for_baseline(job, 0.0, 8)
    assert stopping.has_time_for_baseline(job, 0.0, 4)


def test_a_baseline_that_the_previous_run_did_not_measure_takes_as_long_as_the_rows_of_this_one(
        make_job, at):
    """As a run without time for it, whose span is empty."""
    job = make_job({"refresh": {"deadline": "05:00 UTC"}, "decode": {"batch_size": 8}})
    at(3)
    publish(job, seconds={"gate": 0, "publish": 0}, baseline=None, baseline_span=[100.0, 100.1])
    totals = Totals(rows=200, tokens=16000, target_steps=4000, busy_s=200.0)
    seconds = baseline.expected_seconds(job, totals, 2)
    assert seconds == pytest.approx(2 * 32 * 4.0 / 2)  # two methods, 32 rows, four tokens a step, two workers
    stopping.fix_deadline(job)
    at(4, 57)
    assert stopping.has_time_for_baseline(job, seconds, 16)
    at(4, 58)
    assert not stopping.has_time_for_baseline(job, seconds, 16)
    assert baseline.expected_seconds(make_job({"baseline": {"rows": 0}}), totals) == 0
    without_prompt = replace(totals, rows=500, errors=300)  # they take no time and no slot
    assert baseline.expected_seconds(job, without_prompt, 2) == seconds
    assert baseline.expected_seconds(job, Totals(rows=3, errors=3)) == 0


def test_a_baseline_that_is_measured_is_kept_by_a_run_that_is_resumed_near_its_deadline(
        job, at, monkeypatch):
    work = shard_plan.ShardPlan(job.space.stage("generate"), "f", 1, 8, 0)
    monkeypatch.setattr(baseline, "_try_measure", lambda job, plan, texts, run_workers: {"rows": texts})
    at(3)
    stopping.fix_deadline(job)
    totals = Totals(rows=8, errors=3)
    first = generate._baseline(job, work, 1, totals)
    assert first["measured"] == {"rows": 5}
    at(5)
    assert generate._baseline(job, work, 1, totals) == first
    other = shard_plan.ShardPlan(job.space.stage("generate"), "g", 1, 8, 0)
    assert generate._baseline(job, other, 1, totals) == {}


def test_a_first_row_takes_as_long_as_those_that_are_there_or_as_an_earlier_run_says(job):
    assert stopping.row_seconds(job, Totals()) == 0
    publish(job, "2025-12-30", counts={"written": 10}, totals={"tokens": 2000}, tokens_per_s=50.0)
    publish(job, "2025-12-31", counts={"written": 0}, totals={"tokens": 0}, tokens_per_s=None)
    publish(job, "2026-01-03", counts={"written": 10}, totals={"tokens": 10}, tokens_per_s=50.0)
    assert stopping.row_seconds(job, Totals()) == pytest.approx(200 / 50)
    assert stopping.row_seconds(job, Totals(rows=4, busy_s=20.0)) == pytest.approx(5)


def test_an_estimate_says_which_share_of_the_decoding_the_limits_of_time_leave(job, make_job, at):
    """2,000 seconds of one worker, two workers, and 600 seconds for everything else."""
    def share(job):
        return estimate._share_in_time(job, 2000.0, 2, 600.0)

    at(3)
    assert share(make_job()) == share(job) == 1.0
    at(4, 45)  # 300 seconds are left for each worker
    assert share(job) == pytest.approx(0.3)
    assert share(make_job({"refresh": {"max_worker_hours": 0.1}})) == pytest.approx(360 / 2000)
    both = make_job({"refresh": {"deadline": "05:00 UTC", "max_worker_hours": 0.1}})
    assert share(both) == pytest.approx(0.18)
    at(4, 55)
    assert share(job) == 0.0
    assert estimate._share_in_time(job, 0.0, 2, 600.0) == 1.0  # nothing is decoded


def test_another_hour_buys_what_the_curve_has_behind_the_chosen_rows():
    """The chosen rows cost 100 in 1,800 seconds of one worker; so an hour of both workers pays for 400."""
    curve = {"rows": [0, 10, 20, 30], "cost": [0, 100, 300, 900], "value": [0.0, 50.0, 80.0, 110.0],
             "chosen_rows": 10, "chosen_cost": 100, "chosen_value": 50.0}
    assert words.one_more_hour(curve, 1800.0, 2) == pytest.approx((80 + 30 * 200 / 600 - 50) / 60)
    assert words.one_more_hour(curve, 100.0, 2) == 1.0
    assert words.one_more_hour(curve | {"chosen_cost": 900, "chosen_value": 110.0}, 1800.0, 2) is None
    assert words.one_more_hour(None, 1800.0, 2) is words.one_more_hour(curve, 0.0, 2) is None
