"""Nights whose texts follow a schema: columns of values, stale texts after a change of it, the gate."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_helpers import NIGHT_1, NIGHT_2, NIGHT_3, snapshot

pytest.importorskip("llguidance", reason="grammars need the package llguidance (extra schema)")

from dare_job import pipeline  # noqa: E402
from dare_job.errors import ConfigError, ThresholdError  # noqa: E402
from dare_job.schemas import ENTITIES, KNOWLEDGE  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BEFORE = "2025-12-31"
GENRES = ["drama", "comedy", "science fiction"]
TASTE = {"type": "object", "additionalProperties": False, "required": ["likes", "since"], "properties": {
    "likes": {"type": "array", "items": {"enum": GENRES}, "minItems": 1, "maxItems": 2},
    "since": {"type": "integer", "minimum": 1950, "maximum": 2026}}}
WIDER = TASTE | {"properties": TASTE["properties"] | {"adult": {"type": "boolean"}},
                 "required": [*TASTE["required"], "adult"]}
SCHEMA = {"user": {"json": TASTE}, "item": {"choices": ["for children", "for adults"]}}


def sections(schema: dict = SCHEMA, **decode) -> dict:
    return {"decode": {"max_new_tokens": 48, "batch_size": 8, "nodes": 12, "score": "always",
                       "schema": schema, **decode}, "gates": {"max_share": {"cut_off": None}}}


@pytest.fixture(scope="module")
def two(job_of, tmp_path_factory):
    out = tmp_path_factory.mktemp("schema")
    return out, [pipeline.run(job_of(out, night, **sections())) for night in (NIGHT_1, NIGHT_2)]


@pytest.fixture(scope="module")
def wider(job_of, two):
    """The folder and the third night's summary, in which texts of users have one more property."""
    out, _ = two
    return out, pipeline.run(job_of(out, NIGHT_3, **sections({**SCHEMA, "user": {"json": WIDER}}), limit=10))


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


def test_a_new_schema_makes_the_texts_of_its_entity_type_stale(wider):
    out, found = wider
    users = snapshot(out, "user", NIGHT_3).values()
    new = [row for row in users if row["generated_dt"] == NIGHT_3 and row["knowledge"]]
    old = [row for row in users if row["generated_dt"] != NIGHT_3 and row["knowledge"]]
    assert len(new) == 10 and old and found["written"] >= 10
    cut_off = [row for row in new if row["finish_reason"] == "length"]
    assert len(cut_off) < 5 and all(row["parsed"] is None for row in cut_off)
    assert all(row["parsed"]["adult"] is not None for row in new if row not in cut_off)
    assert all(row["parsed"]["adult"] is None and row["parsed"]["since"] for row in old)
    assert all(row["generated_dt"] != NIGHT_3 for row in snapshot(out, "item", NIGHT_3).values())


def with_a_date_before(out: Path, table: Path) -> Path:
    """Copy the published texts, with a date before the first whose texts have no schema; return its users."""
    shutil.copytree(out / "knowledge", table)
    for entity in ENTITIES:
        folder = table / f"entity={entity}"
        rows = pq.read_table(folder / f"dt={NIGHT_1}", partitioning=None).select(KNOWLEDGE.names)
        (folder / f"dt={BEFORE}").mkdir()
        pq.write_table(rows, folder / f"dt={BEFORE}" / "part-00000.parquet")
    return table / "entity=user" / f"dt={BEFORE}"


def test_spark_reads_dates_with_and_without_the_column(wider, spark, tmp_path):
    """Before the schema, with it, and with one more property."""
    out, table = wider[0], tmp_path / "knowledge"
    before = with_a_date_before(out, table)
    frame = spark.read.option("mergeSchema", True).parquet(str(table))
    assert frame.schema["parsed"].dataType.simpleString() == (
        "struct<likes:array<string>,since:bigint,adult:boolean>")
    found = {(row["entity"], str(row["dt"]), row["entity_id"]): row["parsed"] and row["parsed"].asDict()
             for row in frame.select("entity", "dt", "entity_id", "parsed").collect()}
    expected = {}
    for entity in ENTITIES:
        for day in (BEFORE, NIGHT_1, NIGHT_2, NIGHT_3):
            for name, row in snapshot(out, entity, NIGHT_1 if day == BEFORE else day).items():
                values = None if day == BEFORE else row.get("parsed")
                expected[entity, day, name] = values and {"adult": None, **values}
    assert found == expected
    adult = frame.where("parsed.adult IS NOT NULL").select("dt").distinct().collect()
    assert [str(row["dt"]) for row in adult] == [NIGHT_3]

    rows = pq.read_table(before, partitioning=None)
    other = pa.array([{"since": "long ago"}] * len(rows), pa.struct([("since", pa.string())]))
    pq.write_table(rows.append_column("parsed", other), before / "part-00000.parquet")
    with pytest.raises(Exception, match="CANNOT_MERGE"):
        spark.read.option("mergeSchema", True).parquet(str(table))
    columns = KNOWLEDGE.names
    assert spark.read.parquet(str(table)).select(columns).count() == len(expected)


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
