"""Tables as people have them: other names, columns, formats, files and folders than ours."""

import gzip
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import deltalake
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from input_rows import read
from pyiceberg.catalog.memory import InMemoryCatalog

from dare_job.config.settings import InputSettings
from dare_job.data.input import guess
from dare_job.data.input.cleaning import clean
from dare_job.data.input.prepare import input_fingerprint, read_input
from dare_job.errors import DataError
from dare_job.stages import plan
from dare_job.tables import published

NOON = 1_699_963_200  # 2023-11-14 12:00:00 UTC
EVENT = {"user_id": ["u"], "item_id": ["a"], "timestamp": [NOON]}


def put(folder, name, **columns):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return folder


def text(folder, name, *lines, encoding="utf-8"):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode(encoding)
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def events(tmp_path, column, **settings):
    """Timestamps that are read, and problems, of one column of times."""
    rows = len(column)
    folder = put(tmp_path / "in", "interactions.parquet", user_id=["u"] * rows, item_id=["a"] * rows,
                 timestamp=column)
    found = read(folder, tmp_path, tables={"interactions": settings})
    return [row["timestamp"] for row in found["interactions"]], [problem for _,
                                                                 problem in found["bad interactions"]]


@pytest.mark.parametrize(("column", "settings"), [
    ([NOON], {}), ([float(NOON)], {}), ([str(NOON)], {}), ([Decimal(NOON)], {}),
    ([NOON * 1000], {"time": "ms"}), ([NOON * 10**6 + 7], {"time": "us"}), ([NOON * 10**9], {"time": "ns"}),
    ([str(NOON * 1000)], {"time": "ms"}), ([NOON / 86400], {"time": "d"}),
    (pa.array([datetime(2023, 11, 14, 12)], pa.timestamp("ns")), {}),
    (pa.array([datetime(2023, 11, 14, 12, tzinfo=UTC)], pa.timestamp("ms", "Asia/Tokyo")), {}),
    (["2023-11-14 12:00:00"], {}), (["2023-11-14T12:00:00Z"], {}), (["2023-11-14T13:00:00.5+01:00"], {}),
    (["14.11.2023 12:00"], {"time": "%d.%m.%Y %H:%M"}), (["11/14/2023 12:00:00 PM"],
                                                         {"time": "%m/%d/%Y %I:%M:%S %p"}),
    (["Tue Nov 14 05:00:00 -0700 2023"], {"time": "%a %b %d %H:%M:%S %z %Y"}),
    (["2023-11-14 13:00:00"], {"time_zone": "Europe/Berlin"}),
    (pa.array([datetime(2023, 11, 14, 13)]), {"time_zone": "Europe/Berlin"}),
    (pa.array(["2023-11-14 12:00:00"]).dictionary_encode(), {})])
def test_times_of_every_kind_are_seconds(tmp_path, column, settings):
    assert events(tmp_path, column, **settings) == ([NOON], [])


def test_dates_are_the_first_second_of_the_day_in_their_zone(tmp_path):
    assert events(tmp_path, pa.array([date(2023, 11, 14)]))[0] == [1_699_920_000]
    assert events(tmp_path, ["2023-11-14"])[0] == [1_699_920_000]
    assert events(tmp_path, ["2023-11-14"], time_zone="Asia/Tokyo")[0] == [1_699_920_000 - 9 * 3600]
    assert events(tmp_path, pa.array([datetime(1969, 12, 31, 23, 59, 59, 500_000)]))[1] == [
        "timestamp is not in seconds from 1970 to 2100"]


def test_times_that_are_none_are_problems(tmp_path):
    assert events(tmp_path, ["soon", "", "2023-02-30", None, " NaN "]) == ([], [
        "timestamp is neither a number nor a date as 2026-01-31 10:00:00", "timestamp is missing",
        "timestamp is neither a number nor a date as 2026-01-31 10:00:00", *["timestamp is missing"] * 2])
    assert events(tmp_path, ["2023-11-14"], time="%d.%m.%Y")[1] == ["timestamp is not of the format %d.%m.%Y"]
    assert events(tmp_path, [True])[1] == ["timestamp is bool, no number"]
    assert events(tmp_path, [NOON * 1000])[1] == ["timestamp is not in seconds from 1970 to 2100"]


def test_int96_timestamps_of_spark(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    table = pa.table({**EVENT, "timestamp": [datetime(2023, 11, 14, 12)]})
    pq.write_table(table, folder / "interactions.parquet", use_deprecated_int96_timestamps=True)
    assert read(folder, tmp_path)["interactions"][0]["timestamp"] == NOON


def test_ids_of_every_type_are_text(tmp_path):
    name = UUID("12345678123456781234567812345678")
    for column, expected in (([7], "7"), ([7.0], "7"), ([Decimal("7")], "7"), ([b"x"], "x"), (["007"], "007"),
                             (pa.array([name.bytes], pa.binary(16)), str(name)), ([date(2020, 1, 2)],
                                                                                  "2020-01-02")):
        folder = put(tmp_path / "in", "interactions.parquet", **{**EVENT, "user_id": column})
        assert read(folder, tmp_path)["interactions"][0]["user_id"] == expected
    folder = put(tmp_path / "in", "interactions.parquet", **{**EVENT, "user_id": [True]})
    assert read(folder, tmp_path)["bad interactions"] == [(1, "user_id is bool, no id")]


def test_only_attributes_that_are_asked_for_are_read(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    columns = {"item_id": ["a"], "title": ["A"], "Genre": ["Drama"], "genre": ["Comedy"], "secret": ["x"],
               "vector": pa.array([np.ones(2, np.float16)], pa.list_(pa.float16()))}
    put(folder, "items.parquet", **columns)
    for asked, expected in (({}, {}), ({"attributes": ["Genre"]}, {"Genre": "Drama"}),
                            ({"attributes": {"kind": "genre"}}, {"kind": "Comedy"}),
                            ({"attributes": "all", "all_but": ["secret", "vector"]},
                             {"Genre": "Drama", "genre": "Comedy"})):
        assert read(folder, tmp_path, tables={"items": asked})["items"][0]["attributes"] == expected
    with pytest.raises(DataError, match=r"items.parquet has no column colour, which input.tables.items "
                       r"names"):
        read(folder, tmp_path, tables={"items": {"attributes": ["colour"]}})


def test_what_pandas_writes(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    frame = pd.DataFrame({"item_id": ["b", "a"], "title": ["B", "A"], "year": [None, 1999],
                          "added": pd.to_datetime(["2024-01-01"] * 2), "tags": [["x", "y"], None]}, index=[7,
                                                                                                           3])
    frame.to_parquet(folder / "items.parquet")
    found = read(folder, tmp_path, tables={"items": {"attributes": "all"}})["items"]
    assert [item["attributes"] for item in found] == [
        {"added": "2024-01-01", "tags": "x, y"}, {"year": "1999", "added": "2024-01-01"}]


def test_hidden_files_are_no_part_and_folders_give_columns(tmp_path):
    folder = tmp_path / "in"
    for name in ("interactions/part-0.parquet", "interactions/_temporary/0/part-0.parquet",
                 "interactions/.ipynb_checkpoints/part-0.parquet",
                 "interactions/_change_data/part-0.parquet"):
        put(folder, name, **EVENT)
    (folder / "interactions" / "_SUCCESS").touch()
    put(folder, "interactions/rating=1/part-0.parquet", **EVENT, rating=[5.0])  # the file's own column counts
    for genre, item in (("Sci%20Fi", "a"), ("__HIVE_DEFAULT_PARTITION__", "b")):
        put(folder, f"items/genre={genre}/part-0.parquet", item_id=[item], title=[item])
    found = read(folder, tmp_path, tables={"items": {"attributes": ["genre"]}})
    assert [row["rating"] for row in found["interactions"]] == [None, 5.0]
    assert {item["item_id"]: item["attributes"] for item in found["items"]} == {"a": {"genre": "Sci Fi"},
                                                                                "b": {}}


def test_links_files_without_a_suffix_and_files_that_are_none(tmp_path, caplog):
    put(tmp_path / "elsewhere", "part-1", **EVENT)
    folder = put(tmp_path / "in", "interactions/part-0.parquet", **EVENT)
    (folder / "interactions" / "more").symlink_to(tmp_path / "elsewhere")
    (folder / "interactions" / "again").symlink_to(folder / "interactions")
    (folder / "interactions" / "notes.md").write_text("x")
    assert len(read(folder, tmp_path)["interactions"]) == 2
    assert "notes.md" in caplog.text


def test_a_file_and_a_folder_of_one_name_are_not_chosen_from(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    put(folder, "interactions/part-0.parquet", **EVENT)
    with pytest.raises(DataError, match="has both interactions and interactions.parquet; say which"):
        read(folder, tmp_path)
    assert read(folder, tmp_path, tables={"interactions": {"path": "interactions"}})["interactions"]


def test_a_csv_with_a_mapping(tmp_path):
    folder = text(tmp_path / "in", "log.csv", "when;customer;product;what;stars",
                  '01.02.2024;7;"a;b";buy;9', "01.02.2024;7;c;view;1", "01.02.2024;;c;buy;1",
                  "2.2.24;7;c;buy;0",
                  "03.02.2024;8;c;buy;-1")
    text(folder, "shop.tsv", "sku\tlabel\tcolour", 'a;b\t5" "Nails" &amp; more\tgr\xfcn', "c\tB\tNULL",
         encoding="latin-1")
    found = read(folder, tmp_path, tables={
        "interactions": {"path": "log.csv", "columns": {"user_id": "customer", "item_id": "product",
                                                        "rating": "stars", "timestamp": "when"},
                         "time": "%d.%m.%Y", "where": {"what": ["buy"]}, "unrated": [-1],
                         "rating_range": [-1, 10]},
        "items": {"path": "shop.tsv", "columns": {"item_id": "sku", "title": "label"},
                  "attributes": ["colour"],
                  "quotes": "none"}})
    assert found["interactions"] == [
        {"user_id": "7", "item_id": "a;b", "rating": 9.0, "timestamp": 1_706_745_600},
        {"user_id": "8", "item_id": "c", "rating": None, "timestamp": 1_706_918_400}]
    assert found["bad interactions"] == [(4, "user_id is missing"), (5, "timestamp is not of the format "
                                                                     "%d.%m.%Y")]
    assert found["items"] == [
        {"item_id": "a;b", "title": '5" "Nails" & more', "attributes": {"colour": "grün"}},
        {"item_id": "c", "title": "B", "attributes": {}}]


def test_ratings_with_a_decimal_comma(tmp_path):
    marks = ["4,5", "1.234,5", "-0,5", "3", "", "4.5", "1,234.5", "1,2,3"]
    folder = text(tmp_path / "in", "interactions.csv", "user_id;item_id;rating;timestamp",
                  *[f"u;a;{mark};{NOON}" for mark in marks])
    found = read(folder, tmp_path, tables={"interactions": {"decimal": "comma", "separator": ";"}})
    assert [row["rating"] for row in found["interactions"]] == [4.5, 1234.5, -0.5, 3.0, None]
    assert found["bad interactions"] == [(line, "rating is not a number") for line in (7, 8, 9)]


def test_rows_are_chosen_by_booleans_and_numbers(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", user_id=["u", "v", "w"], item_id=["a"] * 3,
                 timestamp=[NOON] * 3, deleted=[False, True, False], year=[2023, 2023, 2024])
    found = read(folder, tmp_path, tables={"interactions": {"where": {"deleted": [False], "year": [2023]}}})
    assert [row["user_id"] for row in found["interactions"]] == ["u"]


def test_records_of_several_lines_and_quotes_that_are_none(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, "items.csv", "item_id,title", 'a,"Two', 'lines, one ""title"""', 'b,6" nails', 'c,"open',
         "d,D",
         'e,"E, e"', "f,F,too many", "", "g,G")
    found = read(folder, tmp_path)
    assert {item["item_id"]: item["title"] for item in found["items"]} == {
        "a": 'Two lines, one "title"', "b": '6" nails', "c": '"open', "d": "D", "e": "E, e", "g": "G"}
    assert found["bad items"] == [(8, "expected 2 fields, found 3")]


def test_json_lines_and_nested_values(tmp_path):
    folder = text(tmp_path / "in", "interactions.jsonl.gz", json.dumps({"user_id": 1, "item_id": "a",
                                                                        "timestamp": NOON}),
                  "{'user_id': 2, 'item_id': 'a', 'timestamp': '2023-11-14'}", "[1]", "")
    text(folder, "items.jsonl", json.dumps({"item_id": "a", "title": "A", "genres": [{"id": 1,
                                                                                      "name": "Drama"}],
                                            "more": {"x": 1}, "kinds": "['x', 'y']"}))
    found = read(folder, tmp_path, tables={"items": {"attributes": ["genres", "more", "kinds"]}})
    assert [row["user_id"] for row in found["interactions"]] == ["1", "2"]
    assert found["bad interactions"] == [(3, "not a JSON object")]
    assert found["items"][0]["attributes"] == {"genres": "Drama", "kinds": "x, y"}


def test_patterns_translations_and_no_times(tmp_path):
    folder = text(tmp_path / "in", "part-1.csv", "u,i", "x,1", "x,9")
    text(folder, "part-2.csv", "u,i", "y,2")
    text(folder, "names.csv", "number,id", "1,a", "2,b")
    found = read(folder, tmp_path, tables={"interactions": {
        "path": "part-*.csv", "columns": {"user_id": "u", "item_id": "i", "timestamp": None}, "rating": 1.0,
        "ids": {"item_id": {"path": "names.csv", "column": "number", "to": "id"}}}})
    assert found["interactions"] == [{"user_id": "x", "item_id": "a", "rating": 1.0, "timestamp": 2},
                                     {"user_id": "y", "item_id": "b", "rating": 1.0,
                                      "timestamp": 500_000_002}]
    assert found["bad interactions"] == [(3, "item_id is not in names.csv")]


@pytest.mark.parametrize(("tables", "message"), [
    ({"path": "none.csv"}, r"interactions.path = none.csv: .*none.csv does not exist \(found: log.csv\)"),
    ({"path": "no*.csv"}, "no file matches"),
    ({"path": "log.csv"}, r"log.csv has no column user_id, item_id, timestamp \(columns found: kunde, ware, "
     r"zeit\); "
                          r"say which it is: input.tables.interactions.columns=\{user_id: COLUMN"),
    ({"path": "log.csv", "columns": {"user_id": "kunde", "item_id": "ware", "timestamp": "zeit"},
      "where": {"what": ["buy"]}}, "no column what, which input.tables.interactions names")])
def test_what_is_wrong_is_said_with_file_column_and_setting(tmp_path, tables, message):
    folder = text(tmp_path / "in", "log.csv", "kunde,ware,zeit", "1,2,3")
    with pytest.raises(DataError, match=message):
        read(folder, tmp_path, tables={"interactions": tables})


@pytest.mark.parametrize(("name", "data", "message"), [
    ("dt=2024-01-02/b.parquet", b"", r"b.parquet is empty: it has not even a header line. Remove it, or name "
     r"the other files: input.tables.interactions.path"),
    ("b.csv", "user_id".encode("utf-16"), r"b.csv is UTF-16, which is not supported: convert it to UTF-8")])
def test_a_file_that_cannot_be_read_among_others_is_named(tmp_path, name, data, message):
    if name.endswith(".csv"):
        folder = text(tmp_path / "in", "interactions/a.csv", "user_id,item_id,timestamp", "u,a,1")
    else:
        folder = put(tmp_path / "in", "interactions/dt=2024-01-01/a.parquet", **EVENT)
    file = folder / "interactions" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    with pytest.raises(DataError, match=message):
        read(folder, tmp_path)


def test_an_empty_folder_is_called_empty(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match=r"no format is recognized \(it is empty\)"):
        read(tmp_path / "in", tmp_path)


@pytest.mark.parametrize(("table", "key", "columns", "message"), [
    ("interactions", "columns", {"ratings": "stars"}, "ratings is no column of ours.*ours are user_id, "),
    ("items", "columns", {"name": "title"}, "name is no column of ours.*ours are "),
    ("user_texts", "ids", {"user_id": {"path": "x", "column": "a", "to": "b"}}, "user_id is no column of")])
def test_a_mapping_of_a_column_that_we_do_not_have_is_refused(table, key, columns, message):
    """It was ignored, and with it a column of ratings."""
    with pytest.raises(ValueError, match=message):
        InputSettings(path="in", tables={table: {key: columns}})


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


@pytest.mark.parametrize(("mark", "message"), [
    ("_delta_log/00000000000000000001.json", "cannot be read as a Delta table"),
    (".hoodie/hoodie.properties", "is a Hudi table, which is not read here")])
def test_a_lake_that_cannot_be_read_is_named(tmp_path, mark, message):
    folder = put(tmp_path / "in", "interactions/part-0.parquet", **EVENT)
    (folder / "interactions" / mark).parent.mkdir()
    (folder / "interactions" / mark).write_text('{"remove": {"path": "part-0.parquet", "dataChange": '
                                                'true}}\n')
    with pytest.raises(DataError, match=message):
        read(folder, tmp_path)


def test_texts_of_another_system_are_the_previous_ones(make_job, tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    put(folder, "items.parquet", item_id=["a"], title=["A"])
    text(folder, "profiles.csv", "customer,profile", 'u,"Likes A.', 'A lot."', "u,again", "v,")
    texts = {"path": "profiles.csv", "columns": {"entity_id": "customer", "knowledge": "profile"}}
    job = make_job({"input": {"path": str(folder), "max_reject_share": 0.5, "tables": {"user_texts": texts}}},
                   day="2026-01-02")
    plan.run(job)
    rows = published.dataset(published.previous_folder(job, "user")).to_table().to_pylist()
    assert {row["entity_id"]: row["knowledge"] for row in rows} == {"u": "Likes A.\nA lot.", "v": None}
    assert published.previous_folder(job, "item") is None


def test_a_query_of_spark(spark, tmp_path):
    put(tmp_path / "in", "all.parquet", **{**EVENT, "kind": ["buy"]})
    spark.read.parquet(str(tmp_path / "in" / "all.parquet")).createOrReplaceTempView("events_of_shop")
    for query, rows in (("select * from events_of_shop where kind = 'buy'", 1), ("events_of_shop", 1),
                        ("select * from events_of_shop where kind = 'view'", 0)):
        settings = InputSettings(tables={"interactions": {"query": query}})
        into = tmp_path / f"into-{abs(hash(query))}"
        assert read_input(settings, into, spark).interactions == rows
        assert not list(into.glob(".query*"))
    with pytest.raises(DataError, match=r"input.tables.interactions.query = nowhere: "
                       r".*TABLE_OR_VIEW_NOT_FOUND"):
        read_input(InputSettings(tables={"interactions": {"query": "nowhere"}}), tmp_path / "none", spark)


def test_a_fault_in_a_worker_is_one_line(spark, tmp_path):
    folder = text(tmp_path / "in", "interactions.jsonl", json.dumps({key: value[0] for key,
                                                                     value in EVENT.items()}))
    data = gzip.compress((json.dumps({"item_id": "a", "title": "A"}) * 1000).encode())
    (folder / "items.jsonl.gz").write_bytes(data + b"\x1f\x8b broken")
    with pytest.raises(DataError, match=r"^\S+items.jsonl.gz is damaged: [^\n]*$"):
        read_input(InputSettings(path=str(folder)), tmp_path / "into", spark)


def test_text_of_a_wrong_encoding_is_repaired_and_right_text_is_left_alone():
    for text, repaired in (("caf\u00c3\u00a9", "café"),
                           ("na\u00c3\u00afve \u00e2\u20ac\u0153q\u00e2\u20ac\x9d", "naïve \u201cq\u201d"),
                           ("\x93q\x94", "\u201cq\u201d"), ("5\u00c2\u00a3", "5£")):
        assert clean(text) == repaired
    for text in ("NESCAFÉ® Gold Blend", "\u201eViel Spaß\u201c", "CAFÉ\u2019S", "ROSÉ\u2122",
                 "\u201eMENÜ\u201c", "Ü\u201330",
                 "MANHÃ\u2122", "São Paulo, coração", "Ângela", "I <3 U & me", "A<|eos|>B"):
        assert clean(text) == text


def test_a_date_without_separators_is_no_second_of_1970(tmp_path):
    day = 1_699_920_000
    for column in ([20231114], ["20231114"], [20231114.0]):
        assert events(tmp_path, column)[1] == ["timestamp is a date such as 20260131, not seconds"]
        assert events(tmp_path, column, time="%Y%m%d") == ([day], [])
    assert guess.time_format(pa.array([20231114, 20231231])) == "%Y%m%d"
    assert events(tmp_path, [7, 978_300_275])[1] == []  # an order, or real seconds


def test_times_that_python_does_not_have_are_rejected(tmp_path):
    far = pa.array([2**60, NOON * 1000], pa.int64()).cast(pa.timestamp("ms"))
    assert events(tmp_path, far) == ([NOON], ["timestamp is not in seconds from 1970 to 2100"])


def test_files_of_a_lake_are_not_read_past_its_log(tmp_path):
    path = tmp_path / "in" / "events"
    deltalake.write_deltalake(str(path), pa.table({**EVENT, "day": ["x"]}), partition_by=["day"])
    for place in ("events/*", "ev*", "events/day=x", "*/day=x"):
        with pytest.raises(DataError, match="Delta table"):
            read(tmp_path / "in", tmp_path, tables={"interactions": {"path": place}})
    with pytest.raises(DataError, match="contains a Delta table"):
        read(tmp_path, tmp_path, tables={"interactions": {"path": "in"}})
    assert len(read(path, tmp_path)["interactions"]) == 1  # input.path itself


def test_settings_of_the_form_hold_for_a_table_with_the_usual_name(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, "items.csv", "item_id;title", "a;日本語", encoding="shift_jis")
    settings = {"tables": {"items": {"encoding": "shift_jis"}}}
    assert read(folder, tmp_path, **settings)["items"][0]["title"] == "日本語"
    text(folder, "items.csv", "a,A")
    assert read(folder, tmp_path, tables={"items": {"header": ["item_id",
                                                               "title"]}})["items"][0]["title"] == "A"


def test_one_bad_byte_changes_no_other_line(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    (folder / "items.csv").write_bytes("item_id,title\né,É\n".encode() + b"b,B\xff\n")
    found = read(folder, tmp_path, tables={"items": {"encoding": "utf-8"}})["items"]
    assert [item["title"] for item in found] == ["É", "B\ufffd"]


def test_attributes_in_json_and_names_that_would_forge_a_line(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, "items.jsonl", json.dumps({"item_id": "a", "title": ["A", "B"],
                                            "attributes": {"genre": "Drama"}}),
         json.dumps({"item_id": {"$oid": "b"}, "title": "NULL", "x\n2. Fake": "y"}))
    assert read(folder, tmp_path)["items"] == [
        {"item_id": "a", "title": "A, B", "attributes": {"genre": "Drama"}},
        {"item_id": "b", "title": None, "attributes": {}}]
    found = read(folder, tmp_path, tables={"items": {"attributes": "all",
                                                     "all_but": ["attributes"]}})["items"]
    assert found[1]["attributes"] == {"x 2. Fake": "y"}
    (folder / "items.jsonl").unlink()
    text(folder, "items.csv", ",item_id,title,colour", "0,a,A,red")
    found = read(folder, tmp_path, tables={"items": {"attributes": "all"}})["items"]
    assert found[0]["attributes"] == {"colour": "red"}


def test_ids_that_pandas_made_floats_are_the_same_in_text(tmp_path):
    folder = text(tmp_path / "in", "interactions.csv", "user_id,item_id,timestamp", f"7.0,1.0,{NOON}",
                  f"NULL,1,{NOON}")
    found = read(folder, tmp_path)
    assert [(row["user_id"], row["item_id"]) for row in found["interactions"]] == [("7", "1")]
    assert found["bad interactions"] == [(3, "user_id is missing")]


def test_without_times_the_order_goes_on_from_file_to_file(tmp_path):
    folder = tmp_path / "in" / "interactions"
    for name in "ab":
        text(folder, f"{name}.csv", "user_id,item_id", f"u,{name}1", f"u,{name}2")
    found = read(folder.parent, tmp_path,
                 tables={"interactions": {"columns": {"timestamp": None}}})["interactions"]
    assert [row["item_id"] for row in sorted(found, key=lambda row: row["timestamp"])] == ["a1", "a2", "b1",
                                                                                           "b2"]


def test_a_changed_file_of_ids_is_a_changed_input(tmp_path):
    folder = text(tmp_path / "in", "log.csv", "user_id,item_id,timestamp", f"u,1,{NOON}")
    text(folder, "names.csv", "number,id", "1,a")
    settings = InputSettings(path=str(folder), tables={"interactions": {
        "path": "log.csv", "ids": {"item_id": {"path": "names.csv", "column": "number", "to": "id"}}}})
    before = input_fingerprint(settings)
    text(folder, "names.csv", "number,id", "1,bb")
    assert input_fingerprint(settings) != before


def test_files_that_differ(tmp_path, caplog):
    folder = tmp_path / "in"
    put(folder, "interactions/a.parquet", **EVENT)
    put(folder, "items/a.parquet", item_id=["a"], title=["A"])
    put(folder, "items/b.parquet", item_id=["b"], title=["B"], colour=["red"])
    found = read(folder, tmp_path, tables={"items": {"attributes": ["colour"]}})["items"]
    assert [item["attributes"] for item in found] == [{}, {"colour": "red"}]
    text(folder / "users", "a.csv", "user_id", "u")
    text(folder / "users", "b.csv")
    assert len(read(folder, tmp_path)["users"]) == 1 and "b.csv" in caplog.text
    text(folder / "users", "a.csv", "user_id,user_id", "u,v")
    with pytest.raises(DataError, match="has several columns user_id"):
        read(folder, tmp_path)
    (folder / "users" / "lost").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match="lost cannot be read"):
        read(folder, tmp_path)


def test_a_separator_of_two_characters_beside_quotes(tmp_path):
    folder = text(tmp_path / "in", "interactions.dat", "user_id::item_id::timestamp", f'u::"a::{NOON}')
    assert read(folder, tmp_path)["interactions"][0]["item_id"] == '"a'


@pytest.mark.parametrize(("settings", "message"), [
    ({"time": "%H %Z"}, "%Z does not say which zone"), ({"encoding": "utf-16"}, "convert the files to UTF-8"),
    ({"columns": {"ratings": "stars"}}, "ratings")])
def test_settings_that_would_be_read_wrongly_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        InputSettings(tables={"interactions": settings})
