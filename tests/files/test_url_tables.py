"""Tables at URLs, read and written by Spark's Python workers: as Spark itself has them on a disk."""

import gzip
import io
import re
import zipfile
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from dare_job.config.settings import InputSettings
from dare_job.data.input import source
from dare_job.data.input.archive import unpack
from dare_job.data.input.prepare import read_input
from dare_job.data.input.scan import Piece, line_blocks
from dare_job.data.input.source import input_identity
from dare_job.errors import DataError
from dare_job.spark import session
from dare_job.spark.tables import read_parquet, write_parquet
from dare_job.storage import paths

pytestmark = pytest.mark.spark


@pytest.fixture
def folder(store, request):
    return paths.path(f"{store}/{re.sub('[^a-z_]', '-', request.node.name)}")


def table(rows: int = 5) -> pa.Table:
    return pa.table({
        "id": pa.array([f"u{n}" for n in range(rows)]),
        "n": pa.array(range(rows), pa.int32()),
        "small": pa.array(range(rows), pa.uint8()),
        "big": pa.array(range(rows), pa.uint32()),
        "price": pa.array([Decimal("1.50")] * rows),
        "kind": pa.array(["a", None, "b", "a", "a"][:rows]).dictionary_encode(),
        "ids": pa.array([[n, n + 1] for n in range(rows)], pa.list_(pa.int32())),
        "map": pa.array([[("k", str(n))] for n in range(rows)], pa.map_(pa.string(), pa.string())),
        "struct": pa.array([{"x": n} for n in range(rows)]),
        "at": pa.array([datetime(2026, 1, 2, 3, n, tzinfo=UTC) for n in range(rows)],
                       pa.timestamp("ms", "UTC")),
        "local": pa.array([datetime(2026, 1, 2, 3, n) for n in range(rows)], pa.timestamp("us")),
        "large": pa.array([f"t{n}" for n in range(rows)], pa.large_string()),
    })


def put(path, content: pa.Table, **options) -> None:
    with paths.arrow_sink(path) as sink:
        pq.write_table(content, sink, **options)


def rows_of(frame) -> list:
    return sorted(map(repr, frame.collect()))


@pytest.mark.slow
def test_a_table_reads_as_from_a_disk(spark, folder, tmp_path):
    pq.write_table(table(), tmp_path / "t.parquet")
    put(folder / "t" / "part-1.parquet", table())
    local, remote_ = read_parquet(spark, tmp_path / "t.parquet"), read_parquet(spark, folder / "t")
    assert remote_.columns == local.columns
    assert [field.dataType for field in remote_.schema] == [field.dataType for field in local.schema]
    assert rows_of(remote_) == rows_of(local)


@pytest.mark.slow
def test_a_large_file_is_read_by_several_tasks(spark, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(session, "TASK_BYTES", 1000)
    monkeypatch.setattr(session, "_FILE_COSTS_BYTES", 1)
    many = pa.table({"n": pa.array(np.arange(3000))})
    put(folder / "t" / "part-1.parquet", many, row_group_size=700)
    put(folder / "t" / "_hidden" / "part-2.parquet", many)
    frame = read_parquet(spark, folder / "t")
    assert frame.rdd.getNumPartitions() > 1
    assert sorted(row.n for row in frame.collect()) == list(range(3000))


def test_only_the_columns_asked_for_are_there_and_missing_ones_are_null(spark, folder):
    put(folder / "t" / "part-1.parquet", pa.table({"id": ["a"], "n": [1], "text": ["x"]}))
    put(folder / "t" / "part-2.parquet", pa.table({"n": [2]}))
    frame = read_parquet(spark, folder / "t", columns=["id", "n", "nowhere"])
    assert frame.columns == ["id", "n"]
    assert sorted(map(tuple, frame.collect()), key=str) == [("a", 1), (None, 2)]


def test_a_table_is_written_whole_and_appended_to(spark, folder):
    frame = spark.range(0, 100, 1, 4).select("id", F.create_map(F.lit("k"), F.lit("v")).alias("map"))
    write_parquet(frame.where("id < 50"), folder / "t")
    write_parquet(frame.where("id >= 50"), folder / "t", mode="append")
    back = read_parquet(spark, folder / "t")
    assert rows_of(back) == rows_of(frame) and back.schema["map"].dataType == frame.schema["map"].dataType
    write_parquet(frame.where("id < 0"), folder / "empty")
    assert read_parquet(spark, folder / "empty").columns == ["id", "map"]
    assert read_parquet(spark, folder / "empty").count() == 0


def test_no_file_and_a_damaged_file_are_named(spark, folder):
    with pytest.raises(DataError, match="none: no Parquet files found"):
        read_parquet(spark, folder / "none")
    (folder / "t" / "part-1.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DataError, match="part-1.parquet cannot be read as Parquet"):
        read_parquet(spark, folder / "t")


@pytest.mark.parametrize("name", ["x.dat", "x.txt.gz"])
def test_lines_are_those_of_a_disk(folder, tmp_path, name):
    text = "\ufeffone\r\ntwo\n\n   \nthr\u00e9e\rfour".encode() + "\ncaf\u00e9\n".encode("latin-1") + b"last"
    content = gzip.compress(text) if name.endswith(".gz") else text
    (tmp_path / name).write_bytes(content)
    (folder / name).write_bytes(content)
    local, there = ([line for _, lines in line_blocks(Piece(str(path / name)), None) for line in lines]
                    for path in (tmp_path, folder))
    assert there == local == ["one", "two", "", "   ", "thr\u00e9e\rfour", "caf\u00e9", "last"]


def test_a_zip_at_a_url_is_unpacked_there_and_goes_with_the_reading(folder):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("ml/ratings.csv", "userId,movieId,rating,timestamp\n1,10,4.0,100\n")
        archive.writestr("README.txt", "x")
    (folder / "ml.zip").write_bytes(content.getvalue())
    unpacked = unpack(folder / "ml.zip", folder / "there", source.detected)
    assert unpacked == folder / "there" / "ml"
    assert (unpacked / "ratings.csv").read_text().endswith("\n1,10,4.0,100\n")
    with pytest.raises(DataError, match=r"movies.csv is missing \(found ratings.csv\)"):
        read_input(InputSettings(path=str(folder / "ml.zip"), format="movielens"), folder / "read", None)
    assert not [name for name in paths.listing(folder) if ".archive" in name]


@pytest.mark.slow
@pytest.mark.parametrize("zipped", [False, True])
def test_an_input_reads_as_from_a_disk(spark, folder, tmp_path, zipped):
    source = tmp_path / "ml"
    source.mkdir()
    (source / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n1,10,4.0,100\n1,11,x,101\n2,10,3.5,102\n")
    (source / "movies.csv").write_text('movieId,title,genres\n10,"A, film (1990)",Drama|War\n11,B,Comedy\n')
    local, there = source, folder / "ml"
    if zipped:
        local = tmp_path / "ml.zip"
        with zipfile.ZipFile(local, "w") as archive:
            for file in source.iterdir():
                archive.write(file, f"ml/{file.name}")
        there = folder / "ml.zip"
        there.write_bytes(local.read_bytes())
    else:
        paths.upload(source, there)
    found = {}
    for name, path, into in (("local", local, tmp_path / "read"), ("url", there, folder / "read")):
        settings = InputSettings(path=str(path), max_reject_share=1.0)
        counts = read_input(settings, into, spark)
        tables = {table: rows_of(read_parquet(spark, into / f"{table}.parquet"))
                  for table in ("interactions", "users", "items", "rejects")}
        found[name] = counts, tables, [entry[:2] for entry in input_identity(settings)]
    assert found["url"] == found["local"] and found["url"][0].broken == 1
    assert not [name for name in paths.listing(folder) if ".archive" in name]


@pytest.mark.slow
def test_a_parquet_input_with_odd_types_reads_as_from_a_disk(spark, folder, tmp_path):
    events = pa.table({"user_id": [1, 2], "item_id": [10.0, 11.5], "rating": [1.0, None],
                       "timestamp": pa.array([10**18, 2 * 10**18], pa.timestamp("ns"))})
    items = pa.table({"item_id": ["10"], "title": ["A"], "year": pa.array([1990], pa.int16())})
    (tmp_path / "in").mkdir()
    for place in (tmp_path, folder):
        put(place / "in" / "interactions.parquet", events)
        put(place / "in" / "items.parquet", items)
    found = []
    for place in (tmp_path, folder):
        read_input(InputSettings(path=str(place / "in"), max_reject_share=1.0), place / "read", spark)
        found.append({name: rows_of(read_parquet(spark, place / "read" / f"{name}.parquet"))
                      for name in ("interactions", "items", "rejects")})
    assert found[0] == found[1]
