"""Tables with other names and columns than ours: mappings, queries, and what is said of wrong ones."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from input_rows import EVENT, NOON, put, read, text

from dare_job.config.settings import InputSettings, JobConfig
from dare_job.data.input import table
from dare_job.data.input.prepare import read_input, write_query
from dare_job.data.inspect import inspect
from dare_job.errors import DataError
from dare_job.stages import plan
from dare_job.tables import published


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


def test_rows_are_chosen_by_booleans_and_numbers(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", user_id=["u", "v", "w"], item_id=["a"] * 3,
                 timestamp=[NOON] * 3, deleted=[False, True, False], year=[2023, 2023, 2024])
    found = read(folder, tmp_path, tables={"interactions": {"where": {"deleted": [False], "year": [2023]}}})
    assert [row["user_id"] for row in found["interactions"]] == ["u"]


@pytest.mark.parametrize(("name", "allowed", "users"), [
    ("float.csv", [1], "u"), ("float.csv", [1.0], "u"), ("float.csv", ["1"], ""), ("float.csv", [True], "u"),
    ("bool.csv", [True], "u"), ("bool.csv", [False], "v"), ("bool.csv", ["True"], "u"),
    ("bool.csv", ["true"], ""),
    ("bool.parquet", [True], "u"), ("bool.parquet", ["True"], "u"), ("bool.parquet", [0], "v"),
    ("int.parquet", [1.0], "u"), ("int.parquet", [True, 0], "uv"), ("int.parquet", ["1"], "u"),
    ("number.jsonl", [1], "u"), ("number.jsonl", [0, 1], "uv"), ("no.csv", [False], "u"),
    ("no.csv", ["NO"], "u"),
    ("long.parquet", [2**53 + 1], "v"), ("text.csv", ["SE", 7], "uv"), ("kind=True/x.csv", [True], "u")])
def test_values_of_where_are_compared_by_value(tmp_path, name, allowed, users):
    """1.0 was another value than 1, and True than true: no row was read."""
    pairs = {"float": ("1.0", "0.0"), "bool": (True, False), "int": (1, 0), "no": ("NO", "yes"),
             "long": (2**53, 2**53 + 1), "text": ("SE", "07"), "number": ("1.0", "0")}
    first, second = pairs.get(name.partition(".")[0], (None, None))
    if name.endswith(".parquet"):
        put(tmp_path / "in", "x.parquet", user_id=["u", "v"], item_id=["a"] * 2, timestamp=[1] * 2,
            kind=[first, second])
    elif name.endswith(".jsonl"):
        text(tmp_path / "in", "x.jsonl", *[
            f'{{"user_id": "{user}", "item_id": "a", "timestamp": 1, "kind": {kind}}}'
            for user, kind in (("u", first), ("v", second))])
    elif "=" in name:
        text(tmp_path / "in", f"x/{name}", "user_id,item_id,timestamp", "u,a,1")
        text(tmp_path / "in", "x/kind=False/x.csv", "user_id,item_id,timestamp", "v,a,1")
    else:
        text(tmp_path / "in", "x.csv", "user_id,item_id,timestamp,kind", f"u,a,1,{first}", f"v,a,1,{second}")
    path = next((tmp_path / "in").iterdir()).name
    settings = {"path": path, "where": {"kind": allowed}}
    found = read(tmp_path / "in", tmp_path, tables={"interactions": settings})
    assert "".join(row["user_id"] for row in found["interactions"]) == users


def test_rows_with_text_and_lists_of_polars_are_chosen(tmp_path):
    """Views of text, which Arrow does not take rows of, ended the run with a traceback."""
    kinds, users = (pa.array(each, pa.string_view()) for each in (["buy", "view"], ["u", "v"]))
    put(tmp_path / "in", "interactions.parquet", user_id=users, item_id=users, timestamp=[1, 1], kind=kinds)
    put(tmp_path / "in", "items.parquet", item_id=["a", "b"], title=["A", "B"], kind=kinds,
        tags=pa.array([["x", "y"], []], pa.large_list(pa.string_view())))
    where = {"where": {"kind": ["buy"]}}
    found = read(tmp_path / "in", tmp_path,
                 tables={"interactions": where, "items": {**where, "attributes": ["tags"]}})
    assert [row["user_id"] for row in found["interactions"]] == ["u"]
    assert found["items"] == [{"item_id": "a", "title": "A", "attributes": {"tags": "x, y"}}]


def test_a_date_of_yaml_in_where_is_refused():
    tables = yaml.safe_load("interactions: {where: {day: [2026-01-01]}}")
    with pytest.raises(ValueError, match="day: 2026-01-01 is a date in YAML: write it in quotes, as text"):
        InputSettings(tables=tables)


def test_a_log_without_times_is_told_the_setting(tmp_path):
    folder = text(tmp_path / "in", "interactions.csv", "user_id,item_id", "u,a")
    with pytest.raises(DataError, match=r"no column timestamp.*If none has times, the order of rows counts: "
                       r"input.tables.interactions.columns=\{timestamp: null\}"):
        read(folder, tmp_path)


def test_a_boolean_that_is_compared_with_text_is_refused(tmp_path):
    """YAML reads NO as false: all Norwegian rows were lost without a word."""
    folder = text(tmp_path / "in", "interactions.csv", "user_id,item_id,timestamp,country", "u,a,1,SE",
                  "v,a,1,NO")
    tables = yaml.safe_load("interactions: {where: {country: [SE, NO]}}")
    with pytest.raises(DataError, match=r"interactions.csv: column country has text, such as SE, and "
                       r"input.tables.interactions.where names false; .* write such words in quotes"):
        read(folder, tmp_path, tables=tables)
    tables = yaml.safe_load("interactions: {where: {country: [SE, 'NO']}}")
    assert len(read(folder, tmp_path, tables=tables)["interactions"]) == 2


def test_columns_of_one_name_are_refused_where_all_are_shown(tmp_path):
    """The values of the first were lost."""
    folder = text(tmp_path / "in", "items.csv", "item_id,title,genre,genre", "a,A,Crime,", "b,B,,Art")
    put(folder, "interactions.parquet", **EVENT)
    with pytest.raises(DataError, match=r"items.csv has several columns genre"):
        read(folder, tmp_path, tables={"items": {"attributes": "all"}})
    for settings in ({"all_but": ["genre"]}, {"header": ["item_id", "title", "genre", "kind"]}):
        found = read(folder, tmp_path, tables={"items": {"attributes": "all", **settings}})["items"]
        assert [item["item_id"] for item in found] == ["a", "b"]
    assert [item["attributes"] for item in found] == [{"genre": "Crime"}, {"kind": "Art"}]


def test_columns_that_differ_from_those_left_out_in_case_are_left_out(tmp_path, caplog):
    """A twin of a column showed the addresses to the model."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    put(folder, "items.parquet", item_id=["a"], title=["A"], email=["x@y.z"], Email=["x@y.z"], genre=["Art"])
    settings = {"tables": {"items": {"attributes": "all", "all_but": ["email"]}}}
    assert read(folder, tmp_path, **settings)["items"][0]["attributes"] == {"genre": "Art"}
    found = inspect(JobConfig(input=InputSettings(path=str(folder), **settings)))
    assert found["tables"]["items"]["columns"]["Email"]["use"] == "not read"
    assert "items: Email is left out, too, since a name in input.tables.items.all_but" in caplog.text


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


@pytest.mark.parametrize(("table", "key", "columns", "message"), [
    ("interactions", "columns", {"ratings": "stars"}, "ratings is not a column.*columns user_id, "),
    ("items", "columns", {"name": "title"}, "name is not a column of dare-job.*columns "),
    ("user_texts", "ids", {"user_id": {"path": "x", "column": "a", "to": "b"}}, "user_id is not a column")])
def test_a_mapping_of_a_column_that_we_do_not_have_is_refused(table, key, columns, message):
    """It was ignored, and with it a column of ratings."""
    with pytest.raises(ValueError, match=message):
        InputSettings(path="in", tables={table: {key: columns}})


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


@pytest.mark.slow
def test_a_query_of_spark(spark, tmp_path):
    put(tmp_path / "in", "all.parquet", **{**EVENT, "kind": ["buy"]})
    spark.read.parquet(str(tmp_path / "in" / "all.parquet")).createOrReplaceTempView("events_of_shop")
    for query, rows in (("select * from events_of_shop where kind = 'buy'", 1), ("events_of_shop", 1),
                        ("select * from events_of_shop where kind = 'view'", 0)):
        settings = InputSettings(tables={"interactions": {"query": query}})
        into = tmp_path / f"into-{abs(hash(query))}"
        assert read_input(settings, into, spark).interactions == rows
        assert not list(into.glob(".query*"))
    people = spark.createDataFrame([("u", "u@example.com", "Bonn")], ["user_id", "e`mail", "city"])
    people.createOrReplaceTempView("people_of_shop")
    users = {"query": "people_of_shop", "attributes": ["city"]}
    write_query("users", InputSettings(tables={"users": users}).tables.users, tmp_path / "people", spark)
    files = [pq.read_table(file) for file in (tmp_path / "people").glob("*.parquet")]
    assert {tuple(file.column_names) for file in files if len(file)} == {("user_id", "city")}
    assert {tuple(file.column_names) for file in files if not len(file)} >= {("user_id", "e`mail", "city")}
    with pytest.raises(DataError, match=r"input.tables.interactions.query = nowhere: "
                       r".*TABLE_OR_VIEW_NOT_FOUND"):
        read_input(InputSettings(tables={"interactions": {"query": "nowhere"}}), tmp_path / "none", spark)


def test_the_join_of_the_documents(spark, tmp_path):
    page = (Path(__file__).parents[2] / "docs/how-to/input-tables.md").read_text("utf-8")
    example, = (block for block in re.findall(r"```yaml\n(.*?)```", page, re.S) if " JOIN " in block)
    put(tmp_path / "orders", "1.parquet", order_id=[1, 2], customer=["u", "v"], bought_at=[NOON, NOON + 1])
    put(tmp_path / "order_lines", "1.parquet", order_id=[1, 1, 2, 3], sku=["a", "b", "a", "c"])
    settings = yaml.safe_load(example.replace("/data/shop", str(tmp_path)))["input"]
    counts = read_input(InputSettings.model_validate(settings), tmp_path / "into", spark)
    assert (counts.interactions, counts.items, counts.broken, counts.duplicates) == (3, 3, 0, 0)
    items = pq.read_table(tmp_path / "into" / "items.parquet").to_pylist()
    assert sorted((row["item_id"], row["title"]) for row in items) == [(name, name) for name in "abc"]


def test_settings_of_the_form_hold_for_a_table_with_the_usual_name(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, "items.csv", "item_id;title", "a;日本語", encoding="shift_jis")
    settings = {"tables": {"items": {"encoding": "shift_jis"}}}
    assert read(folder, tmp_path, **settings)["items"][0]["title"] == "日本語"
    text(folder, "items.csv", "a,A")
    assert read(folder, tmp_path, tables={"items": {"header": ["item_id",
                                                               "title"]}})["items"][0]["title"] == "A"


@pytest.mark.parametrize("named", [{}, {"path": "interactions.csv"}])
def test_a_file_of_ids_lies_in_the_input_and_may_have_no_rows(tmp_path, monkeypatch, named):
    """A file of the same name in the working directory was read without a word."""
    folder = text(tmp_path / "in", "interactions.csv", "user_id,item_id,timestamp", "u,a,1")
    text(folder, "links.csv", "a,b", "a,ours")
    text(tmp_path, "links.csv", "a,b", "a,other")
    monkeypatch.chdir(tmp_path)
    ids = {"item_id": {"path": "links.csv", "column": "a", "to": "b"}}
    settings = {"tables": {"interactions": {**named, "ids": ids}}}
    assert [row["item_id"] for row in read(folder, tmp_path, **settings)["interactions"]] == ["ours"]
    text(folder, "links.csv", "a,b")
    table._translation.cache_clear()
    assert read(folder, tmp_path, **settings)["bad interactions"] == [(2, "item_id is not in links.csv")]
    (folder / "links.csv").unlink()
    with pytest.raises(DataError, match=r"interactions.ids.item_id.path = links.csv: \S*in/links.csv does"):
        read(folder, tmp_path, **settings)


@pytest.mark.parametrize(("name", "lines"), [
    ("e.csv", ["user_id,item_id,rating,timestamp", "u,a,5,1"]),
    ("e.tsv", ["timestamp\tuser_id\titem_id", "1\tu\ta"]),
    ("e.jsonl", ['{"user_id": "u", "item_id": "a", "rating": 4, "timestamp": 1}'])])
def test_one_file_with_our_columns_needs_no_mapping(tmp_path, monkeypatch, name, lines):
    """Only Parquet was read; the command that proposes a mapping failed with the advice to run it."""
    text(tmp_path, name, *lines)
    assert [row["item_id"] for row in read(tmp_path / name, tmp_path)["interactions"]] == ["a"]
    assert inspect(JobConfig(input=InputSettings(path=str(tmp_path / name))))["format"] == "parquet"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read(f"~/{name}", tmp_path)["interactions"]


@pytest.mark.parametrize(("settings", "message"), [
    ({"time": "%H %Z"}, "%Z does not say which zone"), ({"encoding": "utf-16"}, "convert the files to UTF-8"),
    ({"columns": {"ratings": "stars"}}, "ratings"), ({"rating": 1e39}, "less than or equal to 34"),
    ({"rating_range": [10, 1]}, "the lowest rating comes first"), ({"time": "%Q"}, "'Q' is a bad directive"),
    ({"time": "%d %d"}, "is no format of strptime")])
def test_settings_that_would_be_read_wrongly_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        InputSettings(tables={"interactions": settings})


@pytest.mark.parametrize("settings", [{"time": "ms"}, {"path": "interactions.csv", "time": "ms"}])
def test_a_table_without_settings_is_the_one_with_the_usual_name(tmp_path, settings):
    """Any setting of the interactions dropped users and items, and with them all titles."""
    folder = text(tmp_path / "in" / "shop", "interactions.csv", "user_id,item_id,timestamp",
                  f"u,a,{NOON * 1000}")
    text(folder, "items.csv", "item_id,title", "a,A")
    text(folder, "users.csv", "user_id", "u")
    found = read(folder, tmp_path, tables={"interactions": settings})
    assert found["interactions"][0]["timestamp"] == NOON
    assert found["items"] == [{"item_id": "a", "title": "A", "attributes": {}}] and found["users"]
    settings = settings | ({"path": f"shop/{settings['path']}"} if "path" in settings else {})
    assert read(folder.parent, tmp_path, tables={"interactions": settings})["items"] == found["items"]


def test_settings_of_interactions_change_a_recognized_set(tmp_path):
    """A range of ratings made MovieLens an input without a path; a column made it lose the others."""
    folder = text(tmp_path / "in", "ratings.csv", "userId,movieId,rating,timestamp,when", f"1,2,7,1,{NOON}")
    text(folder, "movies.csv", "movieId,title,genres", "2,Kite (1995),Drama")
    found = read(folder, tmp_path, tables={"interactions": {"rating_range": [1, 10],
                                                            "columns": {"timestamp": "when"}}})
    assert found["interactions"] == [{"user_id": "1", "item_id": "2", "rating": 7.0, "timestamp": NOON}]
    assert found["items"][0]["attributes"] == {"genre": "Drama", "year": "1995"}


@pytest.mark.parametrize(("name", "left_out", "message"), [
    ("items.csv", "emial", r"items.csv has no column emial, which input.tables.items.all_but leaves out; is "
     r"it Email\? \(columns found: item_id, title, Email"),
    ("items.csv", "phone", "no column phone, which"), ("items.jsonl", "EMAIL", "is it Email"),
    ("items.jsonl", "phone", None)])
def test_a_name_that_leaves_out_nothing_is_refused(tmp_path, caplog, name, left_out, message):
    """A name in another case showed the addresses of all users to the model."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    lines = {"items.csv": ("item_id,title,Email", "a,A,x@y.z"),
             "items.jsonl": ('{"item_id": "a", "title": "A", "Email": "x@y.z"}',)}
    text(folder, name, *lines[name])
    settings = {"tables": {"items": {"attributes": "all", "all_but": [left_out]}}}
    if message is None:  # a key of later objects, perhaps
        inspect(JobConfig(input=InputSettings(path=str(folder), **settings)))
        assert "the first objects have no phone, which input.tables.items.all_but names" in caplog.text
    else:
        with pytest.raises(DataError, match=message):
            read(folder, tmp_path, **settings)


def test_other_columns_of_recbole_are_attributes_by_a_setting_only(tmp_path):
    """All typed columns were, among them addresses of e-mail."""
    folder = text(tmp_path / "in", "x.inter", "user_id:token\titem_id:token\ttimestamp:float", "u\ta\t1")
    text(folder, "x.item", "item_id:token\ttitle:token_seq\tbrand:token\temail:token", "a\tA\tB\tx@y.z")
    assert read(folder, tmp_path)["items"][0]["attributes"] == {"brand": "B"}
    settings = {"items": {"attributes": {"mail": "email:token"}}}
    assert read(folder, tmp_path, tables=settings)["items"][0]["attributes"] == {"mail": "x@y.z"}
