"""Tables of Delta, Iceberg and Hudi, which are read by their logs or refused by name."""

import shutil

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from input_rows import EVENT, NOON, put, read, text
from pyiceberg.catalog.memory import InMemoryCatalog

from dare_job.config.settings import InputSettings
from dare_job.data.input import sample
from dare_job.data.input.prepare import input_fingerprint
from dare_job.data.input.source import opened
from dare_job.errors import DataError


def test_a_delta_table_is_read_by_its_log(tmp_path):
    path = str(tmp_path / "in" / "interactions")
    deltalake.write_deltalake(path, pa.table({**EVENT, "user_id": ["gone"]}))
    deltalake.write_deltalake(path, pa.table(EVENT), mode="append")
    deltalake.DeltaTable(path).delete("user_id = 'gone'")
    assert [row["user_id"] for row in read(tmp_path / "in", tmp_path)["interactions"]] == ["u"]
    assert len(list((tmp_path / "in" / "interactions").glob("*.parquet"))) == 2


def test_an_iceberg_table_is_read_by_its_log_with_its_names(tmp_path):
    catalog = InMemoryCatalog("x", warehouse=str(tmp_path / "lake"))
    catalog.create_namespace("n")
    table = catalog.create_table("n.events", schema=pa.table(EVENT).schema)
    table.append(pa.table({**EVENT, "user_id": ["gone"]}))
    table.append(pa.table(EVENT))
    table.delete("user_id == 'gone'")
    with table.update_schema() as schema:
        schema.rename_column("item_id", "product")
    settings = {"tables": {"interactions": {"path": "n/events", "columns": {"item_id": "product"}}}}
    assert [row["item_id"] for row in read(tmp_path / "lake", tmp_path, **settings)["interactions"]] == ["a"]
    before = input_fingerprint(InputSettings(path=str(tmp_path / "lake"), **settings))
    table.append(pa.table({"user_id": ["v"], "product": ["a"], "timestamp": [NOON]}))
    assert input_fingerprint(InputSettings(path=str(tmp_path / "lake"), **settings)) != before


def test_of_an_iceberg_table_only_the_needed_columns_are_copied_for_as_long_as_it_is_read(tmp_path):
    """Each date kept a copy of all columns, with e-mail addresses that nobody had asked for."""
    catalog = InMemoryCatalog("x", warehouse=str(tmp_path / "in"))
    catalog.create_namespace("n")
    rows = pa.table({**EVENT, "customer": [4711], "email": ["u@example.com"], "kind": ["buy"],
                     "Note": ["new"]}).drop_columns("user_id")
    catalog.create_table("n.events", schema=rows.schema).append(rows)
    events = {"path": "n/events", "columns": {"user_id": "customer"}, "where": {"kind": ["buy"]}}
    items = {"path": "n/events", "distinct": True, "columns": {"title": "item_id"}, "attributes": "all",
             "all_but": ["email", "kind", "customer"]}
    settings = InputSettings(path=str(tmp_path / "in"), tables={"interactions": events, "items": items})
    with opened(settings, tmp_path / "into") as source:
        copied = {name: pq.read_schema(table.files[0].pieces[0].file).names
                  for name, table in source.tables.items()}
        assert source.tables["interactions"].unused() == ["email", "Note"]
        assert next(sample.batches(source.tables["interactions"]))["user_id"].to_pylist() == ["4711"]
    assert copied == {"interactions": ["item_id", "timestamp", "customer", "kind"],
                      "items": ["item_id", "timestamp", "Note"]}
    assert not list((tmp_path / "into").iterdir())
    settings.tables.interactions.columns.clear()
    with pytest.raises(DataError, match="n/events has no column user_id .columns found: item_id, timestamp, "
                       "customer, email"), opened(settings, tmp_path / "into"):
        pass
    assert not list((tmp_path / "into").iterdir())


@pytest.mark.parametrize(("mark", "message"), [
    ("_delta_log/00000000000000000001.json", "cannot be read as a Delta table"),
    (".hoodie/hoodie.properties", "is a Hudi table, which dare-job does not read")])
def test_a_lake_that_cannot_be_read_is_named(tmp_path, mark, message):
    folder = put(tmp_path / "in", "interactions/part-0.parquet", **EVENT)
    (folder / "interactions" / mark).parent.mkdir()
    (folder / "interactions" / mark).write_text('{"remove": {"path": "part-0.parquet", "dataChange": '
                                                'true}}\n')
    with pytest.raises(DataError, match=message):
        read(folder, tmp_path)


def test_files_of_a_lake_are_not_read_past_its_log(tmp_path):
    path = tmp_path / "in" / "events"
    deltalake.write_deltalake(str(path), pa.table({**EVENT, "day": ["x"]}), partition_by=["day"])
    for place in ("events/*", "ev*", "events/day=x", "*/day=x"):
        with pytest.raises(DataError, match="Delta table"):
            read(tmp_path / "in", tmp_path, tables={"interactions": {"path": place}})
    put(tmp_path / "iceberg", "all/events/data/part-0.parquet", **EVENT)
    text(tmp_path / "iceberg", "all/events/metadata/v1.metadata.json", "{}")
    for place, kind in (("in", "a Delta"), ("iceberg", "an Iceberg")):
        with pytest.raises(DataError, match=f"contains {kind} table"):
            read(tmp_path, tmp_path, tables={"interactions": {"path": place}})
    assert len(read(path, tmp_path)["interactions"]) == 1  # input.path itself


def test_a_copied_iceberg_table_is_refused(tmp_path):
    """Its log names the files of the first one: they were read while they existed."""
    catalog = InMemoryCatalog("x", warehouse=str(tmp_path / "lake"))
    catalog.create_namespace("n")
    catalog.create_table("n.events", schema=pa.table(EVENT).schema).append(pa.table(EVENT))
    shutil.copytree(tmp_path / "lake" / "n", tmp_path / "copy" / "n")
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    settings = {"tables": {"interactions": {"path": "n/events"}}}
    assert read(tmp_path / "link", tmp_path, **settings)["interactions"]
    with pytest.raises(DataError, match=r"copy/n/events: this Iceberg table was copied or moved from \S+lak"):
        read(tmp_path / "copy", tmp_path, **settings)


def test_the_cause_of_damage_in_a_lake_is_whole(tmp_path):
    folder = text(tmp_path / "in", "interactions/metadata/v1.metadata.json", "{}")
    with pytest.raises(DataError, match=r"cannot be read as an Iceberg table: ValidationError: .*\w+ .*"
                       r"format.version"):
        read(folder, tmp_path)
