"""Nights whose texts follow a schema: columns of values, stale texts after a change of it, the gate."""

import json

import pyarrow.parquet as pq
import pytest
from run_helpers import NIGHT_1, NIGHT_2, NIGHT_3, snapshot

pytest.importorskip("llguidance", reason="grammars need the package llguidance (extra schema)")

from dare_job import pipeline  # noqa: E402
from dare_job.errors import ConfigError, ThresholdError  # noqa: E402
from dare_job.schemas import ENTITIES, KNOWLEDGE  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.slow]
GENRES = ["drama", "comedy", "science fiction"]
TASTE = {"type": "object", "additionalProperties": False, "required": ["likes", "since"], "properties": {
    "likes": {"type": "array", "items": {"enum": GENRES}, "minItems": 1, "maxItems": 2},
    "since": {"type": "integer", "minimum": 1950, "maximum": 2026}}}
SCHEMA = {"user": {"json": TASTE}, "item": {"choices": ["for children", "for adults"]}}


def sections(schema: dict = SCHEMA, **decode) -> dict:
    return {"decode": {"max_new_tokens": 48, "batch_size": 8, "nodes": 12, "score": "always",
                       "schema": schema, **decode}, "gates": {"max_share": {"cut_off": None}}}


@pytest.fixture(scope="module")
def two(job_of, tmp_path_factory):
    out = tmp_path_factory.mktemp("schema")
    return out, [pipeline.run(job_of(out, night, **sections())) for night in (NIGHT_1, NIGHT_2)]


def test_texts_follow_the_schema_of_their_entity_type(two):
    out, _ = two
    for night in (NIGHT_1, NIGHT_2):
        for row in snapshot(out, "user", night).values():
            assert (row["parsed"] is None) == (row["knowledge"] is None)
            if row["knowledge"] is not None:
                assert row["parsed"] == json.loads(row["knowledge"])
                assert set(row["parsed"]["likes"]) <= {*GENRES}
        items = snapshot(out, "item", night).values()
        assert {row["knowledge"] for row in items} <= {*SCHEMA["item"]["choices"], None}
        file = next((out / "knowledge" / "entity=user" / f"dt={night}").glob("*.parquet"))
        assert str(pq.read_schema(file).field("parsed").type) == (
            "struct<likes: list<element: string>, since: int64>")
        file = next((out / "knowledge" / "entity=item" / f"dt={night}").glob("*.parquet"))
        assert pq.read_schema(file).equals(KNOWLEDGE)
    written = [row for row in snapshot(out, "user", NIGHT_2).values() if row["generated_dt"] == NIGHT_2]
    assert sum(row["accepted_tokens"] + row["scored_tokens"] for row in written) > 0.5 * sum(
        row["tokens"] for row in written)


def test_a_new_schema_makes_the_texts_of_its_entity_type_stale(job_of, two):
    out, _ = two
    wider = TASTE | {"properties": TASTE["properties"] | {"adult": {"type": "boolean"}},
                     "required": [*TASTE["required"], "adult"]}
    found = pipeline.run(job_of(out, NIGHT_3, **sections({**SCHEMA, "user": {"json": wider}}), limit=10))
    users = snapshot(out, "user", NIGHT_3).values()
    new = [row for row in users if row["generated_dt"] == NIGHT_3 and row["knowledge"]]
    old = [row for row in users if row["generated_dt"] != NIGHT_3 and row["knowledge"]]
    assert len(new) == 10 and old and found["written"] >= 10
    cut_off = [row for row in new if row["finish_reason"] == "length"]
    assert len(cut_off) < 5 and all(row["parsed"] is None for row in cut_off)
    assert all(row["parsed"]["adult"] is not None for row in new if row not in cut_off)
    assert all(row["parsed"]["adult"] is None and row["parsed"]["since"] for row in old)
    assert all(row["generated_dt"] != NIGHT_3 for row in snapshot(out, "item", NIGHT_3).values())


def test_texts_that_are_cut_off_have_no_values_and_stop_the_run(job_of, tmp_path):
    with pytest.raises(ThresholdError, match="texts do not have the form of decode.schema"):
        pipeline.run(job_of(tmp_path, NIGHT_1, **sections(max_new_tokens=6)))
    shares = {"gates": {"max_share": {"cut_off": None, "schema": None}}}
    pipeline.run(job_of(tmp_path, NIGHT_1, **(sections(max_new_tokens=6) | shares)))
    rows = snapshot(tmp_path, "user", NIGHT_1).values()
    assert {row["finish_reason"] for row in rows if row["knowledge"]} == {"length"}
    assert not any(row["parsed"] for row in rows)


def test_a_schema_that_cannot_be_stops_a_run_before_it_writes_anything(job_of, tmp_path):
    with pytest.raises(ConfigError, match="decode.schema.user.json: .*not"):
        pipeline.run(job_of(tmp_path, NIGHT_1, **sections({"user": {"json": {"not": {}}}})))
    assert not any((tmp_path / "knowledge" / f"entity={entity}").exists() for entity in ENTITIES)
