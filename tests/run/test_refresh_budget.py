"""Whole nights with the section refresh: a budget, and an end before all rows are written."""

import shutil
import time
from datetime import UTC, datetime, timedelta

import pytest
from run_helpers import LONG_ITEM, NIGHT_1, NIGHT_2, NIGHT_3, snapshot

from dare_job import pipeline
from dare_job.errors import ConfigError
from dare_job.observe import figures
from dare_job.publish.snapshots.history import history
from dare_job.refresh import stopping
from dare_job.schemas import ENTITIES
from dare_job.stages import encode, generate
from dare_job.tables import published
from dare_job.workspace import report_page

pytestmark = pytest.mark.spark
UNTIMED = {"baseline": {"rows": 0}}


@pytest.fixture(scope="module")
def first_night(nights, tmp_path_factory):
    """Factory: an output folder that has only the first night."""
    def make(name):
        out = tmp_path_factory.mktemp(name)
        for entity in ENTITIES:
            folder = f"knowledge/entity={entity}/dt={NIGHT_1}"
            shutil.copytree(nights.out / folder, out / folder)
        return out
    return make


def texts(out, day=NIGHT_2):
    return {(entity, name): (row["knowledge"], row["token_ids"], row["text_key"], row["generated_dt"])
            for entity in ENTITIES for name, row in snapshot(out, entity, day).items()}


def carried(out, day=NIGHT_2):
    """Rows whose change is not in their text, by reason."""
    reasons = {}
    for entity in ENTITIES:
        for name, row in snapshot(out, entity, day).items():
            if row["carried_reason"]:
                reasons.setdefault(row["carried_reason"], {})[entity, name] = row
    return reasons


def all_but_what_failed(curve):
    """Share of the value left that an hour, which is long here, can buy: not the row that failed before."""
    return (curve["value"][-1] - curve["chosen_value"]) / curve["left_value"]


@pytest.mark.slow
def test_a_budget_writes_the_same_texts_of_fewer_rows_and_carries_the_others_over(
        nights, first_night, job_of, capsys):
    out = first_night("budget")
    job = job_of(out, NIGHT_2, refresh={"max_rows": 3}, **UNTIMED)
    summary = pipeline.run(job)
    full, before, found = texts(nights.out), texts(nights.out, NIGHT_1), texts(out)
    changed = {key for key, row in full.items() if row[3] == NIGHT_2}
    written = {key for key, row in found.items() if row[3] == NIGHT_2}
    assert written < changed and len(written) - summary["copied"] == 3 == summary["written"]
    assert all(found[key] == (full if key in written else before)[key] for key in found)
    reasons = carried(out)
    assert {*reasons["budget"]} == (changed & {*found}) - written
    assert {*reasons["failed before"]} == {("item", LONG_ITEM)} and len(reasons) == 2
    assert {row["stale_since"] for row in reasons["budget"].values()} == {NIGHT_2}
    users = [row for (entity, _), row in reasons["budget"].items() if entity == "user" and row["knowledge"]]
    assert users and all(row["unseen_interactions"] > 0 for row in users)
    assert history(out)[-1]["backlog"] == summary["backlog"] == len(reasons["budget"]) + 1
    page = report_page(out, NIGHT_2).read_text("utf-8")
    assert 'id="carried"' in page and "data:image/svg+xml" in page
    lines = capsys.readouterr().err.splitlines()
    place = next(place for place, line in enumerate(lines) if "to generate" in line)
    assert " stale, " in lines[place] and "changed rows carried over (budget " in lines[place]
    assert "Changed rows that are written, by the age of their text: " in lines[place + 1]
    assert "Another hour of each worker would buy " in lines[place + 1]
    measured = figures.of_run(job, "run", 0)
    assert sum(each.value for each in measured if each.name == "rows_stale") == len(changed) + 1
    share, = (each.value for each in measured if each.name == "backlog_hour_share")
    curve = published.read_manifest(out / f"knowledge/entity=user/dt={NIGHT_2}")["refresh"]["curve"]
    assert share == pytest.approx(all_but_what_failed(curve)) and 0 < share < 1


@pytest.mark.slow
def test_a_dry_run_says_what_a_budget_leaves_and_what_an_hour_would_buy(first_night, job_of, capsys):
    out = first_night("dry")
    found = pipeline.dry_run(job_of(out, NIGHT_2, refresh={"max_rows": 3}, **UNTIMED))
    choice, shown = found["refresh"], capsys.readouterr().out
    assert found["users"] + found["items"] == 3 == sum(choice[entity]["chosen"] for entity in ENTITIES)
    left = {reason: sum(choice[entity]["carried"].get(reason, 0) for entity in ENTITIES)
            for reason in ("budget", "failed before")}
    assert left["budget"] > 5 and left["failed before"] == 1
    assert found["one_more_hour"] == pytest.approx(all_but_what_failed(choice["curve"]))
    assert 0 < found["one_more_hour"] < 1 == found["in_time"]
    assert "Changed rows that are written, by the age of their text: 1-2 days: 3 of 18, " in shown
    assert f"Another hour of each worker would buy {found['one_more_hour']:.0%} of the value left" in shown
    assert not (out / f"knowledge/entity=user/dt={NIGHT_2}").exists()
    timed = pipeline.dry_run(job_of(out, NIGHT_2, refresh={"max_worker_hours": 1e-4}, **UNTIMED))
    shown = capsys.readouterr().out
    assert 0 < timed["in_time"] < 1 and 0 <= timed["texts_in_time"] < timed["users"] + timed["items"]
    assert 0 < timed["value_left"] < 1 and 0 < timed["one_more_hour"] <= 1
    assert f"is enough for {timed['in_time']:.0%} of them, about {timed['texts_in_time']} text" in shown
    assert f"{timed['value_left']:.0%} of the expected value is left for later runs" in shown


@pytest.mark.slow
def test_a_run_without_time_publishes_what_is_there_and_goes_on_where_it_stopped(
        nights, first_night, job_of):
    out = first_night("stopped")
    summary = pipeline.run(job_of(out, NIGHT_2, refresh={"max_worker_hours": 1e-9}, **UNTIMED))
    assert summary["stopped"] == "worker hours" and summary["written"] == 0 and summary["backlog"] > 0
    assert {*carried(out)} == {"worker hours", "failed before"}
    record = published.read_manifest(out / f"knowledge/entity=user/dt={NIGHT_2}")["refresh"]
    assert 0 < record["one_more_hour"] < 1  # at the rate of the run before, as this one has none
    resumed = pipeline.run(job_of(out, NIGHT_2, **UNTIMED))
    assert resumed["stopped"] is None and resumed["backlog"] == 1
    assert {*carried(out)["failed"]} == {("item", LONG_ITEM)}  # it was tried again, in vain
    assert texts(out) == texts(nights.out)


@pytest.mark.parametrize("run", [pipeline.run, pipeline.dry_run])
def test_a_deadline_in_the_past_is_an_error_before_the_input_is_read(first_night, job_of, run):
    job = job_of(first_night("past"), NIGHT_2, refresh={"deadline": "2026-01-01 05:00 UTC"}, **UNTIMED)
    with pytest.raises(ConfigError, match="refresh.deadline = '2026-01-01 05:00 UTC' of this run is over"):
        run(job)
    assert not job.space.stage("input").exists() and not (job.space.work / stopping.FIXED).exists()


@pytest.mark.release
def test_a_run_that_ends_by_force_after_it_published_stays_stopped_until_it_has_ended(
        first_night, job_of, monkeypatch):
    """It begins an hour ago, and the deadline passes before the first chunk; the next one is in a day."""
    over = datetime.now(UTC) - timedelta(minutes=1)
    begun = type("Clock", (), {"now": lambda _: over - timedelta(hours=1)})
    out = first_night("forced")
    fixed = out / "_work" / f"dt={NIGHT_2}" / stopping.FIXED

    def job():
        return job_of(out, NIGHT_2, refresh={"deadline": f"{over:%H:%M} UTC"}, **UNTIMED)

    def interrupted(job):
        raise KeyboardInterrupt

    with monkeypatch.context() as earlier:
        earlier.setattr(stopping, "datetime", begun)
        pipeline.run(job(), "plan", "pools")
    with monkeypatch.context() as forced, pytest.raises(KeyboardInterrupt):
        forced.setattr(encode, "run", interrupted)
        pipeline.run(job(), "embed")
    assert fixed.exists() and len(carried(out)["deadline"]) == 18
    summary = pipeline.run(job())
    assert (summary["stopped"], summary["written"]) == ("deadline", 0) and not fixed.exists()
    pipeline.run(job(), "encode", "encode")
    assert not fixed.exists()
    again = pipeline.run(job())  # another run, with a day of time
    assert (again["stopped"], again["written"]) == (None, 18) and not fixed.exists()


def slow_task():
    """What a Spark task does, with a row every six seconds. Shipped to workers by value."""
    def write_shard(batches, task):
        import time

        from dare_job.generate import worker

        def rows():
            for batch in batches:
                for place in range(batch.num_rows):
                    time.sleep(6)
                    yield batch.slice(place, 1)

        yield from worker.write_shard(rows(), task)
    return write_shard


@pytest.mark.slow
def test_rows_that_never_had_a_text_are_in_the_backlog_of_a_first_run(nights, job_of, tmp_path):
    summary = pipeline.run(job_of(tmp_path, NIGHT_1, refresh={"max_rows": 2}, **UNTIMED))
    records = [published.read_manifest(tmp_path / f"knowledge/entity={entity}/dt={NIGHT_1}")["refresh"]
               for entity in ENTITIES]
    assert summary["written"] == 2 == sum(record["chosen"] for record in records)
    waiting = sum(record["carried"].get("budget", 0) for record in records)
    assert summary["backlog"] == waiting > 2 and history(tmp_path)[0]["backlog"] == waiting
    assert sum(record["ages"]["no text"][1] for record in records) == waiting


@pytest.mark.release
def test_a_run_that_reaches_its_deadline_publishes_what_is_written_and_the_next_one_writes_the_rest(
        nights, first_night, job_of, monkeypatch):
    """The deadline is a real one, a minute ahead at most; the stages after generate end before it."""
    monkeypatch.setattr(generate, "write_shard", slow_task())
    out = first_night("deadline")
    small = {"spark": {"rows_per_commit": 1, "shards": 2}, **UNTIMED}
    plan = job_of(out, NIGHT_2, refresh={"deadline": "2100-01-01 05:00 UTC"}, **small)
    for stage in pipeline.STAGES[:pipeline.STAGES.index("generate")]:
        pipeline.run_stage(plan, stage)
    generate.load_shard_plan(plan)  # writing it takes long on a busy machine
    deadline = _next_minute(35)
    summary = pipeline.run(job_of(
        out, NIGHT_2, refresh={"deadline": f"{deadline:%Y-%m-%d %H:%M} UTC"}, **small))
    assert datetime.now(UTC) < deadline + timedelta(seconds=10)
    assert summary["stopped"] == "deadline" and summary["written"] > 0
    waiting = carried(out)["deadline"]
    assert summary["backlog"] == len(waiting) + 1 and summary["written"] + len(waiting) == 18
    record = published.read_manifest(out / f"knowledge/entity=user/dt={NIGHT_2}")["refresh"]
    assert record["value_left"] > 0 and record["chosen"] + record["carried"]["deadline"] > record["chosen"]
    assert record["curve"]["chosen_rows"] == summary["written"] < record["curve"]["rows"][-1]
    monkeypatch.undo()
    rest = pipeline.run(job_of(out, NIGHT_3, refresh={"max_rows": 3}, **UNTIMED))
    found, full = texts(out, NIGHT_3), texts(nights.out)
    written = {key for key, row in found.items() if row[3] == NIGHT_3}
    assert rest["written"] == len(written) == 2 and written < {*waiting}
    assert {*carried(out, NIGHT_3)["failed"]} == {("item", LONG_ITEM)}  # the third
    assert all(found[key][0] == full[key][0] for key in written)
    later = carried(out, NIGHT_3)["budget"]
    assert {*later} == {*waiting} - written and {row["stale_since"] for row in later.values()} == {NIGHT_2}


def _next_minute(at_least_s):
    """Wait until a whole minute is this number of seconds ahead, and return it: deadlines have no seconds."""
    while True:
        now = datetime.now(UTC)
        minute = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
        if at_least_s <= (minute - now).total_seconds() <= at_least_s + 5:
            return minute
        time.sleep(1)
