"""Chained relaxed nights: each row is written by the strict rule on its own night, and only what drifted."""

import shutil
from datetime import date, timedelta

import pyarrow.parquet as pq
import pytest
from run_helpers import NIGHT_2, files, relaxed, snapshot

from dare_job import pipeline
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.tables import stage_inputs

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def day(number: int) -> str:
    return (date.fromisoformat(NIGHT_2) + timedelta(days=number)).isoformat()


@pytest.fixture(scope="module")
def strict(nights):
    """Strict text of tonight's prompts: rows by entity type."""
    return {entity: snapshot(nights.out, entity, NIGHT_2) for entity in ENTITIES}


@pytest.fixture(scope="module")
def chain(job_of, relaxed_night):
    """The relaxed second night, and two nights without news, on which each row has its turn."""
    out, first = relaxed_night
    return out, [first, *(pipeline.run(job_of(out, day(night), **relaxed(2))) for night in (1, 2))]


def test_snapshots_without_the_new_column_are_read_and_scored(chain):
    assert chain[1][0]["scored_tokens"] > 500
    for path in chain[0].glob(f"knowledge/*/dt={day(0)}/*.parquet"):
        assert pq.read_schema(path).equals(KNOWLEDGE)


def test_every_relaxed_text_is_refreshed_in_a_round_and_no_other(chain, strict):
    out, runs = chain
    refreshed, drifted, equal = [], 0, 0
    for entity in ENTITIES:
        first, last = snapshot(out, entity, day(0)), snapshot(out, entity, day(2))
        for name, row in last.items():
            assert row["token_ids"] == strict[entity][name]["token_ids"]
            relaxed = bool(first[name]["relaxed_tokens"])
            assert relaxed == (row["generated_dt"] in (day(1), day(2)))
            drifted += relaxed
            if relaxed:
                refreshed.append(row)
            elif row["error"] is None:
                equal += 1
                assert first[name]["token_ids"] == strict[entity][name]["token_ids"]
    written = [run["written"] for run in runs[1:]]
    assert drifted > 4 and equal > 4
    assert sum(written) == drifted and max(written) < drifted  # some on each night
    assert sum(row["scored_tokens"] for row in refreshed) > 0  # up to the first token that was relaxed
    assert not any(row["relaxed_tokens"] for row in refreshed)


def test_a_refreshed_night_run_again_writes_nothing(chain, job_of):
    out, runs = chain
    before = files(out)
    assert pipeline.run(job_of(out, day(2), run_id="again", **relaxed(2))) == runs[-1]
    assert files(out) == before


def test_a_night_with_nothing_left_to_refresh_is_quiet(chain, job_of):
    job = job_of(chain[0], day(3), run_id="look", **relaxed(1))
    planned = pipeline.run_stage(job, "plan")
    assert [planned[entity]["stale"] for entity in ENTITIES] == [0, 1]  # the item whose prompt is too long


@pytest.mark.release
def test_relaxed_rows_finished_before_refreshing_was_asked_for_are_written_again(chain, job_of, tmp_path):
    shutil.copytree(chain[0], tmp_path, dirs_exist_ok=True)
    before = snapshot(tmp_path, "user", day(0))
    pipeline.run(job_of(tmp_path, day(0), run_id="refreshed", **relaxed(1)))
    after = snapshot(tmp_path, "user", day(0))
    redone = {name for name, row in after.items() if row["source_run_id"] == "refreshed"}
    assert redone == {name for name, row in before.items() if row["relaxed_tokens"]} != set()
    assert not any(row["relaxed_tokens"] for row in after.values())


@pytest.mark.parametrize("sections", [
    {"verify": {"rule": "strict", "refresh_nights": 1}},
    {"verify": {"rule": "relaxed", "refresh_nights": 1}, "decode": {"mode": "resd"}}], ids=["strict", "resd"])
def test_where_text_is_strict_anyway_nothing_is_refreshed(job_of, nights, sections):
    """No row of the plan, from which generate takes whether it is verified strictly, has its turn."""
    job = job_of(nights.out, day(1), run_id="look", **sections)
    pipeline.run_stage(job, "plan")
    for entity in ENTITIES:
        assert stage_inputs.stage_table(job, "plan", entity).where("strict").isEmpty()
