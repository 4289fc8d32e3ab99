"""Files, folders, formats and lakes as people have them."""

import gzip
import json
import os

import pyarrow as pa
import pytest
from input_rows import EVENT, NOON, put, read, text

from dare_job.config.settings import InputSettings, JobConfig
from dare_job.data.input import sample
from dare_job.data.input.prepare import input_fingerprint, read_input
from dare_job.data.input.source import opened
from dare_job.data.inspect import inspect
from dare_job.errors import DataError


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


@pytest.mark.parametrize(("place", "ratings"), [
    ("log", [1, 5]), ("log/*/*.csv", [1, 5]), ("log/rating=*", [1, 5]), ("*/*/*.csv", [1, 5]),
    ("log/rating=5", [5]), ("log/rating=5/p.csv", [5]), ("{}/log/rating=*/p.csv", [1, 5]),
    ("{}/log/rating=1", [1])])
def test_folders_in_a_path_or_pattern_give_columns(tmp_path, place, ratings):
    """Films rated 1 were in prompts, though only those above 3 should be: a pattern lost the ratings."""
    for rating in (1, 5):
        text(tmp_path / "dt=2024-01-01", f"log/rating={rating}/p.csv", "user_id,item_id,timestamp", "u,a,1")
    folder = tmp_path / "dt=2024-01-01"
    settings = InputSettings(path=str(folder), tables={"interactions": {"path": place.format(folder)}})
    with opened(settings, tmp_path / "into") as source:
        events = source.tables["interactions"]
        found = [row["rating"] for batch in sample.batches(events) for row in batch.to_pylist()]
        assert found == ratings
        assert ("dt" in events.columns) == place.startswith("{}")  # a folder of input.path itself


def test_links_files_without_a_suffix_and_files_that_are_none(tmp_path, caplog):
    put(tmp_path / "elsewhere", "part-1", **EVENT)
    folder = put(tmp_path / "in", "interactions/part-0.parquet", **EVENT)
    (folder / "interactions" / "more").symlink_to(tmp_path / "elsewhere")
    (folder / "interactions" / "again").symlink_to(folder / "interactions")
    (folder / "interactions" / "notes.md").write_text("x")
    (folder / "interactions" / "part-1.parquet").symlink_to("part-0.parquet")  # it doubled the rows
    assert len(read(folder, tmp_path)["interactions"]) == 2
    assert "notes.md" in caplog.text


def test_a_file_and_a_folder_of_one_name_are_not_chosen_from(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    put(folder, "interactions/part-0.parquet", **EVENT)
    with pytest.raises(DataError, match="has both interactions and interactions.parquet; say which"):
        read(folder, tmp_path)
    assert read(folder, tmp_path, tables={"interactions": {"path": "interactions"}})["interactions"]


def test_records_of_several_lines_and_quotes_that_are_none(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, "items.csv", "item_id,title", 'a,"Two', 'lines, one ""title"""', 'b,6" nails', 'c,"open',
         "d,D",
         'e,"E, e"', "f,F,too many", "", "g,G")
    found = read(folder, tmp_path)
    assert {item["item_id"]: item["title"] for item in found["items"]} == {
        "a": 'Two lines, one "title"', "b": '6" nails', "c": '"open', "d": "D", "e": "E, e", "g": "G"}
    assert found["bad items"] == [(8, "expected 2 fields, found 3")]


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


def test_a_fault_in_a_worker_is_one_line(spark, tmp_path):
    folder = text(tmp_path / "in", "interactions.jsonl", json.dumps({key: value[0] for key,
                                                                     value in EVENT.items()}))
    data = gzip.compress((json.dumps({"item_id": "a", "title": "A"}) * 1000).encode())
    (folder / "items.jsonl.gz").write_bytes(data + b"\x1f\x8b broken")
    with pytest.raises(DataError, match=r"^\S+items.jsonl.gz is damaged: [^\n]*$"):
        read_input(InputSettings(path=str(folder)), tmp_path / "into", spark)


def test_one_bad_byte_changes_no_other_line(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    (folder / "items.csv").write_bytes("item_id,title\né,É\n".encode() + b"b,B\xff\n")
    found = read(folder, tmp_path, tables={"items": {"encoding": "utf-8"}})["items"]
    assert [item["title"] for item in found] == ["É", "B\ufffd"]


def test_without_times_the_order_goes_on_from_file_to_file(tmp_path):
    """It was that of names without folders, so that a later day came first, and part-10 before part-9."""
    folder = tmp_path / "in" / "interactions"
    names = ["day=2023/part-10", "day=2024/part-1", "day=2024/part-2"]
    for name in names:
        text(folder, f"{name}.csv", "user_id,item_id", f"u,{name} 1", f"u,{name} 2")
    found = read(folder.parent, tmp_path,
                 tables={"interactions": {"columns": {"timestamp": None}}})["interactions"]
    assert [row["item_id"] for row in sorted(found, key=lambda row: row["timestamp"])] == [
        f"{name} {row}" for name in names for row in (1, 2)]
    text(folder, "day=2023/part-9.csv", "user_id,item_id", "u,first")
    found = read(folder.parent, tmp_path, tables={"interactions": {"columns": {"timestamp": None}}})
    assert min(found["interactions"], key=lambda row: row["timestamp"])["item_id"] == "first"


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


def test_folders_give_columns_to_json_lines(tmp_path):
    """Readers of JSON made a null column of every name, so that values of folders were lost."""
    folder = tmp_path / "in"
    for day, rating in (("2023-11-14", 4), ("2023-11-15", 1)):
        text(folder, f"interactions/day={day}/rating={rating}/p.jsonl", '{"user_id": "u", "item_id": "a"}')
    text(folder, "items/genre=Sci%20Fi/p.jsonl", '{"item_id": "a", "title": "A"}',
         '{"item_id": "b", "title": "B", "genre": "Own"}')
    found = read(folder, tmp_path, tables={
        "interactions": {"columns": {"timestamp": "day"}, "where": {"rating": [4]}},
        "items": {"attributes": ["genre"]}})
    assert [(row["rating"], row["timestamp"]) for row in found["interactions"]] == [(4.0, NOON - 12 * 3600)]
    assert [item["attributes"] for item in found["items"]] == [{"genre": "Sci Fi"}, {"genre": "Own"}]


def test_quotes_after_a_backslash_are_read(tmp_path):
    """Without a setting, a title became `The \\Best\\" of"`, and a column beside it got a part of it."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, "items.csv", "item_id,title,kind", r'a,"The \"Best\", of",x', r'b,"TV 12\"",\N',
         r'"c","Two', r'lines \"",\N', 'd,"a ""doubled"" one",x', r'e,"C:\",x', r'f,6\" nails,x')
    found = read(folder, tmp_path, tables={"items": {"attributes": ["kind"]}})["items"]
    assert {item["item_id"]: (item["title"], item["attributes"].get("kind")) for item in found} == {
        "a": ('The "Best", of', "x"), "b": ('TV 12"', None), "c": ('Two lines "', None),
        "d": ('a "doubled" one', "x"), "e": ("C:\\", "x"), "f": ('6\\" nails', "x")}


@pytest.mark.parametrize("lines", [
    ("", " ", "user_id,item_id,timestamp", "u,a,1", ""), ("sep=;", "user_id;item_id;timestamp", "u;a;1"),
    ("# exported", "#", "user_id,item_id,timestamp", "u,a,1"),
    ("\ufeffsep=;", "user_id;item_id;timestamp", "u;a;1"), ("#x\titem_id\ttimestamp\tuser_id", "1\ta\t1\tu")])
def test_lines_before_the_header(tmp_path, lines):
    folder = text(tmp_path / "in", "interactions.csv", *lines)
    assert read(folder, tmp_path) == {"bad interactions": [], "interactions": [
        {"user_id": "u", "item_id": "a", "rating": None, "timestamp": 1}]}


@pytest.mark.parametrize("rows", [["u,a,1,", "u,b,2, "], ['"u",a,1,', '"u",b,2,']])
def test_a_separator_at_the_end_of_each_row_divides_nothing(tmp_path, rows):
    folder = text(tmp_path / "in", "interactions.csv", "user_id,item_id,timestamp", *rows)
    assert [row["item_id"] for row in read(folder, tmp_path)["interactions"]] == ["a", "b"]
    text(folder, "interactions.csv", "user_id,item_id,timestamp", *rows * 50, "u,c,3")
    assert read(folder, tmp_path)["bad interactions"] == [(102, "expected 4 fields, found 3")]
    text(folder, "interactions.csv", "user_id,item_id,timestamp", "u,a,1", "u,b,2,")
    assert read(folder, tmp_path)["bad interactions"] == [(3, "expected 3 fields, found 4")]


def test_a_header_with_a_line_break(tmp_path):
    folder = text(tmp_path / "in", "interactions.csv", '"user', 'id",item_id,timestamp', "u,a,1", '"v",a,2')
    found = read(folder, tmp_path, tables={"interactions": {"columns": {"user_id": "user id"}}})
    assert [row["user_id"] for row in found["interactions"]] == ["u", "v"] and not found["bad interactions"]


def test_text_without_a_header_and_nested_keys_are_named_with_the_setting(tmp_path):
    folder = text(tmp_path / "in", "interactions.csv", "u1,i1,5,1699920000")
    with pytest.raises(DataError, match=r"If its first line is no header but data: "
                       r"input.tables.interactions.header=\[NAME, ...\]"):
        read(folder, tmp_path)
    folder = text(tmp_path / "json", "interactions.jsonl",
                  json.dumps({"user": {"id": "u"}, "item_id": "a", "timestamp": 1}))
    with pytest.raises(DataError, match=r"; a key inside of an object is read by a query: \S+.query="
                       r'"SELECT user.id AS user_id, ... FROM json.`\S+/interactions.jsonl`"'):
        read(folder, tmp_path, tables={"interactions": {"columns": {"user_id": "user.id"}}})


def test_wrapped_values_of_mongodb(tmp_path):
    row = {"user_id": {"$oid": "u"}, "item_id": "a", "timestamp": {"$date": {"$numberLong": "1700000000000"}}}
    folder = text(tmp_path / "in", "interactions.jsonl", json.dumps(row))
    found = read(folder, tmp_path, tables={"interactions": {"time": "ms"}})["interactions"]
    assert found == [{"user_id": "u", "item_id": "a", "rating": None, "timestamp": 1_700_000_000}]


def test_a_file_of_another_format_is_not_called_empty(tmp_path):
    folder = text(tmp_path / "in", "interactions.json", "{", '"user_id": "u",', "}")
    message = "interactions.json: none of its first lines is a JSON object. Write one object per line"
    with pytest.raises(DataError, match=message):
        read(folder, tmp_path)
    text(folder, "log/a.csv", "user_id,item_id,timestamp", "u,a,1")
    text(folder, "log/b.jsonl", "{", "}")
    with pytest.raises(DataError, match="b.jsonl: none of its first lines is a JSON object"):
        read(folder, tmp_path, tables={"interactions": {"path": "log"}})


def test_files_without_a_suffix_are_named_with_the_setting(tmp_path):
    folder = text(tmp_path / "in", "interactions/part-00000", "user_id,item_id,timestamp", "u,a,1")
    with pytest.raises(DataError, match=r"part-00000 have no known suffix.* input.tables.interactions.path = "
                       r"\S+/interactions/\*$"):
        read(folder, tmp_path)
    assert read(folder, tmp_path, tables={"interactions": {"path": "interactions/*"}})["interactions"]


def test_lines_of_another_encoding_are_counted(spark, tmp_path, caplog):
    """Cyrillic text was read as Latin without a word."""
    folder = text(tmp_path / "in", "interactions.csv", "user_id,item_id,timestamp", "u,a,1")
    (folder / "items").mkdir()
    text(folder, "items/a.csv", "item_id,title", "a,A")
    text(folder, "items/b.csv", "item_id,title", "b,B", "c,Бригада", "d,Дом", encoding="cp1251")
    warning = ("items: 2 lines, the first of b.csv: not UTF-8 and read as cp1252. If it is another encoding, "
               "name it: input.tables.items.encoding")
    read_input(InputSettings(path=str(folder)), tmp_path / "into", spark)
    assert warning in caplog.text
    caplog.clear()
    found = inspect(JobConfig(input=InputSettings(path=str(folder))))
    assert found["tables"]["items"]["lines_of_another_encoding"] == {"b.csv": 2} and warning in caplog.text
    caplog.clear()
    inspect(JobConfig(input=InputSettings(path=str(folder), tables={"items": {"encoding": "cp1251"}})))
    assert "encoding" not in caplog.text


def test_files_that_are_named_like_a_table_are_named(tmp_path, caplog):
    folder = text(tmp_path / "in", "interactions.csv", "user_id,item_id,timestamp", "u,a,1")
    for name in ("interactions.1.csv", "interactions-2.csv.gz", "interactions.csv.bak", "items.csv"):
        text(folder, name, "item_id,title", "a,A")
    read(folder, tmp_path)
    assert ("only interactions.csv is read, not interactions-2.csv.gz, interactions.1.csv; a pattern names "
            "several files: input.tables.interactions.path='interactions*.csv'") in caplog.text
    assert "only items.csv" not in caplog.text


def test_a_header_that_is_repeated_is_no_row(spark, tmp_path, caplog):
    """Files joined by cat gave an item item_id with the title title."""
    rows = "user_id,item_id,timestamp", "u,a,1"
    folder = text(tmp_path / "in", "interactions.csv", *rows, *rows, 'v,"a",1')
    (folder / "items").mkdir()
    text(folder, "items/a.csv", "item_id,title", "a,A", " item_id , title", "title,title")
    text(folder, "items/b.csv", '"item_id","title"', '"b","B"', '"item_id","title"', '"c","C"')
    warnings = [f"{table}: skipped {count} with the names of the columns again, the first one in {file}"
                for table, count, file in (
                    ("interactions", "1 line", "interactions.csv"), ("items", "2 lines", "a.csv"))]
    found = read(folder, tmp_path)
    assert [row["user_id"] for row in found["interactions"]] == ["u", "u", "v"]
    assert [row["title"] for row in found["items"]] == ["A", "title", "B", "C"]
    assert not found["bad interactions"]
    where = {"interactions": {"where": {"item_id": ["a", "b", "c"]}}}
    counts = read_input(InputSettings(path=str(folder), tables=where), tmp_path / "into", spark)
    assert (counts.interactions, counts.items, counts.broken) == (3, 4, 0)
    assert all(warning in caplog.text for warning in warnings)
    assert "none of the rows that were read has b, c in the column item_id" in caplog.text
    caplog.clear()
    inspect(JobConfig(input=InputSettings(path=str(folder))))
    assert all(warning in caplog.text for warning in warnings)


@pytest.mark.parametrize(("names", "titles"), [
    (["item_id", "title", "other"], ["A", "B"]), (["ITEM_ID", "Title", "kind"], ["A", "B"]),
    (["item_id", "title", "title2"], ["A", "B"])])
def test_a_setting_may_rename_the_columns_of_a_header(tmp_path, caplog, names, titles):
    """A message advised it, and the header became an item."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, "items.csv", "item_id,title,title", "a,A,x", "b,B,y")
    settings = {"header": names, "columns": {"item_id": names[0], "title": names[1]}}
    found = read(folder, tmp_path, tables={"items": settings})["items"]
    assert [item["title"] for item in found] == titles
    text(folder, "items.csv", "a,A,x", "b,B,y")
    assert [item["title"] for item in read(folder, tmp_path, tables={"items": settings})["items"]] == titles


def test_names_that_are_not_utf_8_are_read(tmp_path, caplog):
    """They ended the run with a traceback."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    place = folder / "items" / os.fsdecode(b"genre=Com\xe9die")
    text(place, os.fsdecode(b"p-\xe9.csv"), "item_id,title", "a,A", "bad")
    settings = InputSettings(path=str(folder), tables={"items": {"attributes": ["genre"]}})
    with opened(settings, tmp_path / "into") as source:
        good, bad = [row for batch in sample.batches(source.tables["items"]) for row in batch.to_pylist()]
    assert good["attributes"] == [("genre", "Comédie")] and bad["source"] == "genre=Comédie/p-é.csv"
    (folder / "interactions.parquet").rename(place / os.fsdecode(b"p-\xe9.parquet"))
    text(folder, "interactions.csv", "user_id,item_id,timestamp", "u,a,1")
    with pytest.raises(DataError, match="genre=Comédie/p-é.parquet: its path is not UTF-8.* rename it"):
        read(folder, tmp_path)
    assert "not read, because they are not Parquet: genre=Comédie/p-é.csv" in caplog.text


def test_a_column_that_is_called_like_another_format(tmp_path):
    folder = text(tmp_path / "in", "log.csv", "ORCID,item_id,timestamp", "0000-0001,a,1")
    found = read(folder, tmp_path, tables={"interactions": {"path": "log.csv",
                                                            "columns": {"user_id": "ORCID"}}})
    assert found["interactions"][0]["user_id"] == "0000-0001"


def test_an_array_of_json_after_a_byte_order_mark_is_named(tmp_path):
    folder = text(tmp_path / "in", "interactions.json", '\ufeff[{"user_id": "u"}]')
    with pytest.raises(DataError, match="is one JSON array: write one object per line"):
        read(folder, tmp_path)


def test_an_unforeseen_fault_names_its_file_and_cause(tmp_path, monkeypatch):
    def fail(*arguments):
        raise KeyError("colour")

    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    monkeypatch.setattr("dare_job.data.input.values.ids", fail)
    with pytest.raises(DataError, match=r"in/interactions.parquet could not be read: KeyError: 'colour'$"):
        read(folder, tmp_path)


def test_a_rejected_row_with_a_list_of_far_times_is_shown(tmp_path):
    far = pa.array([2**60], pa.int64()).cast(pa.timestamp("ms"))
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    put(folder, "items.parquet", item_id=[None], title=["A"], seen=pa.ListArray.from_arrays([0, 1], far))
    found = read(folder, tmp_path, tables={"items": {"attributes": ["seen"]}})
    assert found["bad items"] == [(1, "item_id is missing")]


def test_quotes_may_follow_a_blank(tmp_path):
    """A title kept its quotes, or a comma in it rejected the row."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, "items.csv", 'item_id, "title", genre', 'a, "Heat, The", Crime', 'b, "Alien", SciFi',
         'c, "Two', 'lines", "Art"', 'd, "Heroes" and others, Pop', 'e,"He said, ""Hi""",Talk',
         'f, "open, Art')
    found = read(folder, tmp_path, tables={"items": {"attributes": ["genre"]}})
    assert [(item["title"], item["attributes"].get("genre")) for item in found["items"]] == [
        ("Heat, The", "Crime"), ("Alien", "SciFi"), ("Two lines", "Art"), ('"Heroes" and others', "Pop"),
        ('He said, "Hi"', "Talk"), ('"open', "Art")]
