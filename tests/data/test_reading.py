"""Folders whose names look like patterns; types from a footer, which are those that Spark finds."""

from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job import schemas
from dare_job.data.input.files import files_below
from dare_job.spark.tables import read_parquet, write_parquet


@pytest.mark.parametrize("name", ["o[1]{x}", "a*b?", "back\\slash", "plain"])
def test_a_path_is_no_pattern(spark, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    pq.write_table(pa.table({"x": [7]}), folder / "part-0.parquet")
    assert read_parquet(spark, folder).first()["x"] == 7
    assert read_parquet(spark, folder / "part-0.parquet").count() == 1
    read_parquet(spark, folder).write.parquet(str(folder / "again"))
    assert read_parquet(spark, folder / "again").count() == 1


def jobs(spark) -> int:
    """How many jobs Spark has run, or begun."""
    return spark.sparkContext._jsc.sc().dagScheduler().nextJobId()


@pytest.mark.parametrize("name", ["INTERACTIONS", "ITEMS", "PLAN", "GROUPS", "VECTORS", "KNOWLEDGE"])
@pytest.mark.parametrize("writer", ["arrow", "spark"])
def test_types_of_our_tables_take_no_job_and_are_sparks(spark, tmp_path, name, writer):
    folder = tmp_path / "table"
    folder.mkdir()
    pq.write_table(getattr(schemas, name).empty_table(), folder / "part-0.parquet")
    if writer == "spark":
        write_parquet(spark.read.parquet(str(folder)), tmp_path / "by-spark")
        folder = tmp_path / "by-spark"
    asked, before = spark.read.parquet(str(folder)).schema, jobs(spark)
    assert read_parquet(spark, folder).schema == asked
    assert jobs(spark) == before


def test_other_types_and_partitions_are_as_spark_finds_them(spark, tmp_path):
    at = pa.array([datetime(2026, 1, 2)], pa.timestamp("us"))
    kind = pa.array(["a"]).dictionary_encode()
    found = pa.table({"small": pa.array([1], pa.uint8()), "at": at, "kind": kind})
    pq.write_table(found, tmp_path / "odd.parquet")
    spark.read.parquet(str(tmp_path / "odd.parquet")).write.partitionBy("kind").parquet(str(tmp_path / "by"))
    for place in (tmp_path / "odd.parquet", tmp_path / "by"):
        table = read_parquet(spark, place)
        assert table.schema == spark.read.parquet(str(place)).schema
        assert table.select("small", "at", "kind").collect() == [(1, datetime(2026, 1, 2), "a")]


def test_a_file_that_is_none_is_named(spark, tmp_path):
    (tmp_path / "part-0.parquet").write_text("this is no Parquet")
    with pytest.raises(Exception, match="part-0.parquet"):
        read_parquet(spark, tmp_path).collect()


def test_hidden_folders_are_no_part_of_a_table(tmp_path):
    kept = ["genre=Drama/part-1.parquet", "part-0.parquet"]
    for name in (*kept, "_temporary/0/part-2.parquet", ".ipynb_checkpoints/part-3.parquet",
                 "_change_data/part-4.parquet", "genre=Drama/_x/part-5.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert files_below(tmp_path) == [(tmp_path / kept[0], {"genre": "Drama"}), (tmp_path / kept[1], {})]


def test_a_hidden_file_lends_a_table_no_types(spark, tmp_path):
    """Spark leaves out what begins with a point or a line below, and so does who looks for a footer."""
    pq.write_table(pa.table({"x": [7]}), tmp_path / "part-0.parquet")
    for name in (".part.parquet", "_part.parquet"):
        pq.write_table(pa.table({"y": ["other"]}), tmp_path / name)
    assert read_parquet(spark, tmp_path).collect() == [(7,)]


@pytest.mark.spark
@pytest.mark.parametrize("name", ["plain", "a b%20c", "é", "a:b", "#c?d", "o[1]{x}*", "back\\slash"])
def test_a_local_path_is_on_this_disk_whatever_the_default_file_system_is(spark, tmp_path, name):
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "s3a://bucket")
    try:
        write_parquet(spark.range(3), tmp_path / name)
        assert [*(tmp_path / name).glob("*.parquet")] and read_parquet(spark, tmp_path / name).count() == 3
    finally:
        hadoop.set("fs.defaultFS", before)
