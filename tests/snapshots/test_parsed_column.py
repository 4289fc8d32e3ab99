"""The column ``parsed``: Arrow types of JSON schemas, and values of texts that need not follow them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.schemas import KNOWLEDGE
from dare_job.tables import parsed, published

FILM = {
    "type": "object", "required": ["title"], "properties": {
        "title": {"type": "string"}, "year": {"type": ["integer", "null"]}, "rating": {"type": "number"},
        "seen": {"type": "boolean"}, "genres": {"type": "array", "items": {"enum": ["drama", "comedy"]}},
        "people": {"type": "array", "items": {"$ref": "#/$defs/person"}}, "free": {"type": "object"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
    "$defs": {"person": {"type": "object", "properties": {"name": {"type": "string"},
                                                          "friends": {"$ref": "#/$defs/person"}}}}}
TYPE = pa.struct([
    ("title", pa.string()), ("year", pa.int64()), ("rating", pa.float64()), ("seen", pa.bool_()),
    ("genres", pa.list_(pa.string())),
    ("people", pa.list_(pa.struct([("name", pa.string()), ("friends", pa.string())]))),
    ("free", pa.string()), ("either", pa.string())])


def kind(schema) -> pa.DataType:
    return parsed.column_type(json.dumps(schema))


def values(schema, *texts) -> list:
    return parsed.parse(texts, kind(schema)).to_pylist()


def test_types_follow_from_the_schema():
    assert kind(FILM) == TYPE


@pytest.mark.parametrize(("schema", "expected"), [
    ({"type": "string", "maxLength": 3}, pa.string()), ({"const": 3}, pa.int64()),
    ({"enum": [1.5]}, pa.float64()),
    ({"enum": ["a", None]}, pa.string()), ({"enum": ["a", 1]}, pa.string()), ({}, pa.string()),
    ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64())),
    ({"type": "array", "items": [{"type": "integer"}]}, pa.string()),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, pa.string()),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, pa.int64()),
    ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "boolean"}}}, pa.bool_()),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "number"}}}, pa.float64()),
    ({"$ref": "#/nowhere"}, pa.string()), ({"$ref": "other.json#/a"}, pa.string()),
    ({"$ref": "#"}, pa.string()), ({"type": "object", "properties": {}}, pa.string()),
    ({"type": "object", "properties": {"a": {}, "A": {}}}, pa.string()),  # one name to Spark
    ({"type": ["object", "null"], "properties": {"a": True}}, pa.struct([("a", pa.string())]))])
def test_types_of_parts(schema, expected):
    assert kind(schema) == expected


def test_values_of_a_text():
    text = ('{"title": "Ré\\u0000", "year": 1995, "rating": 4, "seen": true, "genres": ["drama"], "people": '
            '[{"name": "Al", "friends": {"name": "B"}}], "free": {"a": [1]}, "either": 5, "more": 1}')
    assert values(FILM, text) == [{
        "title": "Ré\0", "year": 1995, "rating": 4.0, "seen": True, "genres": ["drama"],
        "people": [{"name": "Al", "friends": '{"name": "B"}'}], "free": '{"a": [1]}', "either": "5"}]


@pytest.mark.parametrize("text", [None, "", "prose", '{"title": "cut o', '["a"]', "null", "7", "[" * 100_000,
                                  '{"year": ' + "9" * 5000 + "}"])
def test_a_text_that_is_no_object_is_null(text):
    assert values(FILM, text) == [None]


def test_values_of_another_type_are_null_alone():
    texts = ['{"title": 3, "year": "1995", "rating": true, "seen": 1, "genres": "drama", "people": [{}, 4]}',
             '{"year": 5.0, "rating": 1e400, "genres": [1, null]}',
             f'{{"year": {2**63}, "rating": {10**400}}}', '{"year": 5.5, "title": "\\ud83d"}']
    none = dict.fromkeys(field.name for field in TYPE)
    assert values(FILM, *texts) == [
        none | {"title": "3", "people": [{"name": None, "friends": None}, None]},
        none | {"year": 5, "genres": ["1", None]}, none, none | {"title": "?"}]
    assert values({"type": "integer"}, "-9223372036854775808", "9223372036854775808", "true", "4") == [
        -2**63, None, None, 4]


def test_the_column_is_kept_in_parquet_and_not_read_as_text(tmp_path):
    table = KNOWLEDGE.empty_table().append_column("parsed", parsed.parse([], TYPE))
    pq.write_table(table, tmp_path / "part-0.parquet")
    assert pq.read_schema(tmp_path / "part-0.parquet").field("parsed").type == TYPE
    assert published.dataset(tmp_path).schema == KNOWLEDGE


def test_duckdb_and_polars_read_the_fields(tmp_path):
    """Beside a date whose texts have no schema."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    row = {"entity_id": "a", "run_id": "r", "knowledge": '{"title": "Heat", "year": 1995}'}
    rows = pa.Table.from_pylist([row, {"entity_id": "b", "run_id": "r"}], schema=KNOWLEDGE)
    pq.write_table(rows, tmp_path / "plain.parquet")
    texts = rows["knowledge"].to_pylist()
    pq.write_table(rows.append_column("parsed", parsed.parse(texts, TYPE)), tmp_path / "parsed.parquet")
    query = f"SELECT entity_id, parsed.title, parsed.year FROM '{tmp_path}/parsed.parquet' ORDER BY 1"
    assert duckdb.sql(query).fetchall() == [("a", "Heat", 1995), ("b", None, None)]
    both = duckdb.sql(f"SELECT parsed.year FROM read_parquet('{tmp_path}/*.parquet', union_by_name=true)")
    assert sorted(both.fetchall(), key=str) == [(1995,), (None,), (None,), (None,)]
    frames = [polars.read_parquet(tmp_path / f"{name}.parquet") for name in ("plain", "parsed")]
    frame = polars.concat(frames, how="diagonal_relaxed")
    assert frame["parsed"].struct.field("title").to_list() == [None, None, "Heat", None]
