"""Chained relaxed nights: each row is written by the strict rule on its own night, and only what drifted."""

import json
import shutil
from datetime import date, timedelta

import pyarrow.parquet as pq
import pytest
from run_helpers import NIGHT_2, files, snapshot

from dare_job import pipeline
from dare_job.stages import generate
from dare_job.tables import ENTITIES, KNOWLEDGE
from dare_job.workspace import MANIFEST

pytestmark = pytest.mark.spark
SHORTER = {"history": {"max_items": 2}, "baseline": {"rows": 0}}  # other prompts than the nights before had


def loose(nights: int) -> dict:
    return {"verify": {"rule": "relaxed", "k": 8, "p": 0.001, "refresh_nights": nights}, **SHORTER}


def day(number: int) -> str:
    return (date.fromisoformat(NIGHT_2) + timedelta(days=number)).isoformat()


@pytest.fixture(scope="module")
def old(nights, tmp_path_factory):
    """The two nights' snapshots as version 1 of the tables had them: without the column of scored tokens."""
    folder = tmp_path_factory.mktemp("old") / "knowledge"
    shutil.copytree(nights.out / "knowledge", folder)
    for path in folder.rglob(MANIFEST):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 1}))
    for path in folder.rglob("*.parquet"):
        table = pq.read_table(path).drop_columns("scored_tokens")
        pq.write_table(table.replace_schema_metadata({"dare_job.schema_version": "1"}), path)
    return folder


@pytest.fixture(scope="module")
def strict(job_of, old, tmp_path_factory):
    """Strict text of the night on which all prompts change: rows by entity type."""
    out = tmp_path_factory.mktemp("strict")
    shutil.copytree(old, out / "knowledge")
    pipeline.run(job_of(out, day(1), **SHORTER))
    return {entity: snapshot(out, entity, day(1)) for entity in ENTITIES}


@pytest.fixture(scope="module")
def chain(job_of, old, tmp_path_factory):
    """That night by a loose rule, and two without news, on which each row has its turn."""
    out = tmp_path_factory.mktemp("chain")
    shutil.copytree(old, out / "knowledge")
    settings = (loose(0), loose(2), loose(2))
    return out, [pipeline.run(job_of(out, day(night), **s)) for night, s in enumerate(settings, 1)]


def test_snapshots_without_the_new_column_are_read_and_scored(strict, chain):
    assert chain[1][0]["scored_tokens"] > 0
    assert sum(row["scored_tokens"] or 0 for row in strict["item"].values()) > 100
    for path in chain[0].glob(f"knowledge/*/dt={day(1)}/*.parquet"):
        assert pq.read_schema(path).equals(KNOWLEDGE)


def test_every_relaxed_text_is_refreshed_in_a_round_and_no_other(chain, strict):
    out, runs = chain
    refreshed, drifted, equal = [], 0, 0
    for entity in ENTITIES:
        first, last = snapshot(out, entity, day(1)), snapshot(out, entity, day(3))
        for name, row in last.items():
            assert row["token_ids"] == strict[entity][name]["token_ids"]
            relaxed = bool(first[name]["relaxed_tokens"])
            assert relaxed == (row["generated_dt"] in (day(2), day(3)))
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
    assert pipeline.run(job_of(out, day(3), run_id="again", **loose(2))) == runs[-1]
    assert files(out) == before


def test_a_night_with_nothing_left_to_refresh_is_quiet(chain, job_of):
    job = job_of(chain[0], day(4), run_id="look", **loose(1))
    planned = pipeline.run_stage(job, "plan")
    assert [planned[entity]["stale"] for entity in ENTITIES] == [1, 1]  # the two that have no text


def test_relaxed_rows_finished_before_refreshing_was_asked_for_are_written_again(chain, job_of, tmp_path):
    shutil.copytree(chain[0], tmp_path, dirs_exist_ok=True)
    before = snapshot(tmp_path, "user", day(1))
    pipeline.run(job_of(tmp_path, day(1), run_id="refreshed", **loose(1)))
    after = snapshot(tmp_path, "user", day(1))
    redone = {name for name, row in after.items() if row["source_run_id"] == "refreshed"}
    assert redone == {name for name, row in before.items() if row["relaxed_tokens"]} != set()
    assert not any(row["relaxed_tokens"] for row in after.values())


@pytest.mark.parametrize("sections", [
    {"verify": {"rule": "strict", "refresh_nights": 1}},
    {"verify": {"rule": "relaxed", "refresh_nights": 1}, "decode": {"mode": "resd"}}], ids=["strict", "resd"])
def test_where_text_is_strict_anyway_nothing_is_refreshed(job_of, nights, sections):
    job = job_of(nights.out, day(1), run_id="look", **sections)
    for stage in pipeline.STAGES[:4]:
        pipeline.run_stage(job, stage)
    assert not any(row.strict for row in generate.tonight(job, None).collect())
