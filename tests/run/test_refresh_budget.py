"""Whole nights with the section refresh: a budget, and an end before all rows are written."""

import shutil

import pytest
from run_helpers import NIGHT_1, NIGHT_2, snapshot

from dare_job import pipeline
from dare_job.errors import ConfigError
from dare_job.publish.snapshots.history import history
from dare_job.schemas import ENTITIES
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


def test_a_budget_writes_the_same_texts_of_fewer_rows_and_carries_the_others_over(
        nights, first_night, job_of):
    out = first_night("budget")
    summary = pipeline.run(job_of(out, NIGHT_2, refresh={"max_rows": 3}, **UNTIMED))
    full, before, found = texts(nights.out), texts(nights.out, NIGHT_1), texts(out)
    changed = {key for key, row in full.items() if row[3] == NIGHT_2}
    written = {key for key, row in found.items() if row[3] == NIGHT_2}
    assert written < changed and len(written) - summary["copied"] == 3 == summary["written"]
    assert all(found[key] == (full if key in written else before)[key] for key in found)
    carried = {(entity, name): row for entity in ENTITIES
               for name, row in snapshot(out, entity, NIGHT_2).items() if row["carried_reason"] == "budget"}
    assert {*carried} == (changed & {*found}) - written and summary["backlog"] == len(carried)
    assert {row["stale_since"] for row in carried.values()} == {NIGHT_2}
    users = [row for (entity, _), row in carried.items() if entity == "user" and row["knowledge"]]
    assert users and all(row["unseen_interactions"] > 0 for row in users)
    assert history(out)[-1]["backlog"] == len(carried)
    page = report_page(out, NIGHT_2).read_text("utf-8")
    assert 'id="carried"' in page and "data:image/svg+xml" in page


def test_a_run_without_time_publishes_what_is_there_and_goes_on_where_it_stopped(
        nights, first_night, job_of):
    out = first_night("stopped")
    summary = pipeline.run(job_of(out, NIGHT_2, refresh={"max_worker_hours": 1e-9}, **UNTIMED))
    assert summary["stopped"] == "worker hours" and summary["written"] == 0 and summary["backlog"] > 0
    rows = snapshot(out, "user", NIGHT_2)
    assert {row["carried_reason"] for row in rows.values()} == {None, "worker hours"}
    resumed = pipeline.run(job_of(out, NIGHT_2, **UNTIMED))
    assert resumed["backlog"] == 0 and resumed["stopped"] is None
    assert texts(out) == texts(nights.out)


def test_a_deadline_in_the_past_is_an_error_before_anything_is_written(first_night, job_of):
    job = job_of(first_night("past"), NIGHT_2, refresh={"deadline": "2026-01-01 05:00 UTC"}, **UNTIMED)
    with pytest.raises(ConfigError, match="refresh.deadline = '2026-01-01 05:00 UTC' is in the past"):
        pipeline.run(job)
    assert not job.space.knowledge("user").exists()
