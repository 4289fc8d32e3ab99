"""Parquet input in contract shape and close to it, and every way in which a file can be wrong."""

from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from dare_job.config.settings import InputSettings
from dare_job.data.input.prepare import read_input
from dare_job.data.input.source import input_identity
from dare_job.errors import DataError, InfrastructureError


def get(folder, name):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def all_attributes(folder):
    return InputSettings(path=str(folder), tables={"items": {"attributes": "all"}})


def test_odd_ids_and_titles_survive(spark, tmp_path, write_input):
    odd = 'a,"b"\'::|\t\\ ☃ /x=1?%20'
    folder = write_input([(odd, odd, 4.0, 100)], [(odd, [("k", odd)])], [(odd, odd, [("k", odd)])])
    read_input(InputSettings(path=str(folder)), tmp_path / "into", spark)
    assert get(tmp_path / "into", "interactions")[0]["user_id"] == odd
    shown = odd.replace("\t", " ")  # one line of text; ids stay as they are
    assert get(tmp_path / "into", "items") == [{"item_id": odd, "title": shown, "attributes": [("k", shown)]}]


def test_lenient_types(spark, tmp_path):
    folder = tmp_path / "input"
    (folder / "interactions").mkdir(parents=True)
    for part, unit in enumerate(("us", "us")):
        pq.write_table(pa.table({
            "user_id": pa.array([part], pa.int64()), "item_id": pa.array([7], pa.int32()),
            "timestamp": pa.array([datetime(2020, 1, 1)], pa.timestamp(unit))}),
            folder / "interactions" / f"part {part}.parquet")
    pq.write_table(pa.table({"item_id": [7], "title": ["x"], "price": [1.5], "colour": ["red"]}),
                   folder / "items.parquet")
    users = pa.table({"user_id": [0], "attributes": [{"age": 30, "city": None}]})
    pq.write_table(users, folder / "users.parquet")
    counts = read_input(all_attributes(folder), tmp_path / "into", spark)
    assert (counts.interactions, counts.users, counts.items) == (2, 1, 1)
    assert get(tmp_path / "into", "interactions")[0] == {
        "user_id": "0", "item_id": "7", "rating": None, "timestamp": 1577836800}
    assert dict(get(tmp_path / "into", "items")[0]["attributes"]) == {"price": "1.5", "colour": "red"}
    assert dict(get(tmp_path / "into", "users")[0]["attributes"]) == {"age": "30"}


def test_nanoseconds_as_pandas_writes_them(spark, tmp_path):
    pq.write_table(pa.table({"user_id": ["u"], "item_id": ["i"], "timestamp": pa.array(
        [1577836800 * 10**9 + 5], pa.timestamp("ns"))}), tmp_path / "interactions.parquet")
    read_input(InputSettings(path=str(tmp_path / "interactions.parquet")), tmp_path / "into", spark)
    assert get(tmp_path / "into", "interactions")[0]["timestamp"] == 1577836800


def test_bad_rows(spark, tmp_path):
    pq.write_table(pa.table({
        "user_id": ["u", None, "u", "u", " "], "item_id": ["i"] * 5,
        "rating": [1.0, 2.0, float("inf"), 3.0, 4.0], "timestamp": [1, 2, 3, 1577836800000, 5]}),
        tmp_path / "interactions.parquet")
    settings = InputSettings(path=str(tmp_path / "interactions.parquet"), max_reject_share=0.8)
    counts = read_input(settings, tmp_path / "into", spark)
    assert (counts.interactions, counts.broken) == (1, 4)
    assert sorted((row["line"], row["reason"]) for row in get(tmp_path / "into", "rejects")) == [
        (2, "user_id is missing"), (3, "rating is not a finite number"),
        (4, "timestamp is not in seconds from 1970 to 2100"), (5, "user_id is missing")]


def test_no_attribute_columns_at_all(spark, tmp_path):
    folder = tmp_path / "input"
    folder.mkdir()
    pq.write_table(pa.table({"user_id": ["u"], "item_id": ["i"], "timestamp": [1]}),
                   folder / "interactions.parquet")
    pq.write_table(pa.table({"user_id": ["u"]}), folder / "users.parquet")
    pq.write_table(pa.table({"item_id": ["i"], "title": ["t"]}), folder / "items.parquet")
    counts = read_input(InputSettings(path=str(folder)), tmp_path / "into", spark)
    assert (counts.users, counts.items, counts.broken) == (1, 1, 0)
    assert get(tmp_path / "into", "users") == [{"user_id": "u", "attributes": []}]


def test_a_column_name_with_a_dot_or_a_back_quote(spark, tmp_path):
    folder = tmp_path / "input"
    folder.mkdir()
    pq.write_table(pa.table({"user_id": ["u"], "item_id": ["i"], "timestamp": [1], "session.id": ["s"]}),
                   folder / "interactions.parquet")
    pq.write_table(pa.table({"item_id": ["i"], "title": ["t"], "release.year": [1999], "a`b": ["x"]}),
                   folder / "items.parquet")
    pq.write_table(pa.table({"user_id": ["u"], "attributes": [{"home.city": "Bonn", "a`b": "y"}]}),
                   folder / "users.parquet")
    read_input(all_attributes(folder), tmp_path / "into", spark)
    item, user = (dict(get(tmp_path / "into", name)[0]["attributes"]) for name in ("items", "users"))
    assert item == {"release.year": "1999", "a`b": "x"} and user == {"home.city": "Bonn", "a`b": "y"}


def mixed(folder, name, *parts):
    (folder / name).mkdir(parents=True)
    for place, part in enumerate(parts):
        pq.write_table(pa.table(part), folder / name / f"part-{place}.parquet")
    return folder


def test_files_of_one_table_may_differ_in_types(spark, tmp_path):
    folder = mixed(
        tmp_path / "input", "interactions",
        {"user_id": [1], "item_id": [7], "timestamp": [1577836800]},
        {"user_id": ["u"], "item_id": ["i"], "timestamp": pa.array([1577836800 * 10**9], pa.timestamp("ns")),
         "rating": [4.5]},
        {"timestamp": [datetime(2020, 1, 1)], "item_id": [8.0], "user_id": pa.array([2], pa.int16())})
    mixed(folder, "items", {"item_id": [7], "title": ["x"]},
          {"title": ["y"], "item_id": ["i"], "colour": ["red"]})
    counts = read_input(all_attributes(folder), tmp_path / "into", spark)
    events = sorted(tuple(row.values()) for row in get(tmp_path / "into", "interactions"))
    assert events == [("1", "7", None, 1577836800), ("2", "8", None, 1577836800),
                      ("u", "i", 4.5, 1577836800)]
    assert {row["item_id"]: dict(row["attributes"]) for row in get(tmp_path / "into", "items")} == {
        "7": {}, "i": {"colour": "red"}}
    assert counts.broken == 0


def test_whole_numbers_stored_as_floats_are_the_same_ids(spark, tmp_path):
    folder = mixed(tmp_path / "input", "interactions", {
        "user_id": [1.0, 2.5, float("nan"), 1e300], "item_id": pa.array([12345678, 1, 1, 1], pa.float64()),
        "timestamp": [1, 1, 1, 1]})
    mixed(folder, "items", {"item_id": [12345678], "title": ["x"]})
    counts = read_input(InputSettings(path=str(folder), max_reject_share=0.9), tmp_path / "into", spark)
    row, = get(tmp_path / "into", "interactions")
    assert (row["user_id"], row["item_id"], counts.broken) == ("1", "12345678", 3)
    assert {row["reason"] for row in get(tmp_path / "into", "rejects")} == {
        "user_id is not a whole number", "user_id is missing",
        "user_id is a float that may have lost digits: export ids as integers or text"}


def test_text_that_is_no_utf_8_is_rejected(spark, tmp_path):
    """A column of text with such bytes, which some programs write, ended the run with a traceback."""
    folder = mixed(tmp_path / "input", "interactions", {
        "user_id": pa.array([b"u", b"\xff\xfe"]).view(pa.string()), "item_id": pa.array([b"i", b"i"]),
        "timestamp": [1, 1]})
    mixed(folder, "items", {"item_id": ["i", "j"], "title": pa.array([b"t", b"\xe9"])})
    counts = read_input(InputSettings(path=str(folder), max_reject_share=0.9), tmp_path / "into", spark)
    assert (counts.interactions, counts.items, counts.broken) == (1, 1, 2)
    assert sorted(row["reason"] for row in get(tmp_path / "into", "rejects")) == [
        "title is not UTF-8", "user_id is not UTF-8"]


def test_a_folder_named_like_a_pattern(spark, tmp_path):
    folder = mixed(tmp_path / "in[1]{x}", "interactions",
                   {"user_id": ["u"], "item_id": ["i"], "timestamp": [1]})
    assert read_input(InputSettings(path=str(folder)), tmp_path / "into[1]", spark).interactions == 1


def test_a_missing_column_names_file_and_column(spark, tmp_path, write_input):
    folder = write_input([("u", "i", 1.0, 1)])
    pq.write_table(pa.table({"user_id": ["u"], "item": ["i"]}), folder / "interactions.parquet")
    with pytest.raises(DataError, match=r"interactions.parquet has no column item_id, timestamp \(columns .*"
                       r"input.tables.interactions.columns=\{item_id: item, timestamp: COLUMN\}"):
        read_input(InputSettings(path=str(folder)), tmp_path / "into", spark)


def test_a_truncated_file_is_named(spark, tmp_path, write_input):
    folder = write_input([("u", "i", 1.0, 1)])
    whole = (folder / "interactions.parquet").read_bytes()
    (folder / "interactions.parquet").write_bytes(whole[:len(whole) // 2])
    with pytest.raises(DataError, match="interactions.parquet is not a readable Parquet file"):
        read_input(InputSettings(path=str(folder)), tmp_path / "into", spark)


def test_a_damaged_page_names_file_and_column(spark, tmp_path, write_input):
    folder = write_input([(f"user-{i}", f"item-{i}", 1.0, i) for i in range(5000)])
    file = folder / "interactions.parquet"
    column = pq.ParquetFile(file).metadata.row_group(0).column(1)
    content = bytearray(file.read_bytes())
    start = min(place for place in (column.dictionary_page_offset, column.data_page_offset) if place)
    content[start:start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    file.write_bytes(content)
    with pytest.raises(DataError, match="interactions.parquet: column item_id is damaged"):
        read_input(InputSettings(path=str(folder)), tmp_path / "into", spark)


def test_identity_sees_a_changed_file(tmp_path, write_input):
    folder = write_input([("u", "i", 1.0, 1)])
    before = input_identity(InputSettings(path=str(folder)))
    assert [name for name, _, _ in before] == ["interactions.parquet", "items.parquet", "users.parquet"]
    write_input([("u", "i", 1.0, 1), ("u", "j", 1.0, 2)])
    assert input_identity(InputSettings(path=str(folder))) != before


@pytest.mark.parametrize(("error", "becomes"), [
    (Py4JNetworkError("Error while sending or receiving"), Py4JNetworkError),
    (PySparkException("Job aborted: ... ExecutorLostFailure (executor 1 exited)"), InfrastructureError),
    (PySparkException("dare_job.errors.InfrastructureError: host-7 has no disk"), InfrastructureError),
    (PySparkException("java.io.IOException: No space left on device"), PySparkException),
    (PySparkException("malformed record"), DataError)], ids=["Java", "executors", "a task", "disk", "input"])
def test_what_is_not_the_inputs_fault_is_not_called_so(
        spark, tmp_path, write_input, monkeypatch, error, becomes):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("dare_job.data.input.checks.write_checked", fail)
    folder = write_input([("u", "i", 1.0, 5)])
    with pytest.raises(becomes) as found:
        read_input(InputSettings(path=str(folder), format="parquet"), tmp_path / "into", spark)
    assert type(found.value) is becomes
    assert becomes is not DataError or f"{folder} could not be read: malformed record" in str(found.value)
