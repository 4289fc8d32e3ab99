"""What `dare-job data inspect` says of an input, and the mapping that it proposes."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from input_rows import config, write

from dare_job.cli import main
from dare_job.config.settings import InputSettings, JobConfig
from dare_job.data.input.checks import hint
from dare_job.data.inspect import inspect
from dare_job.errors import DataError


def shop(folder):
    return write(folder, orders_csv=["customer,sku,bought_at,stars", "7,a,31.01.2024 10:00,4",
                                     "8,b,01.02.2024 11:30,5",
                                     "8,zz,01.02.2024 11:31,5", "9,a,soon,1"],
                 products_jsonl=[json.dumps({"sku": "a", "product_name": "Red kettle", "colour": "red",
                                             "image_url": "http://x"}),
                                 json.dumps({"sku": "b", "product_name": "Blue cup", "colour": "blue"})],
                 customers_csv=["customer,city", "7,Bonn", "8,Köln"])


def test_a_mapping_is_proposed_for_names_that_are_not_ours(tmp_path):
    found = inspect(config(shop(tmp_path / "a" / "shop").parent))
    proposed = yaml.safe_load(found["proposal"])["input"]["tables"]
    assert proposed == {
        "interactions": {"path": "shop/orders.csv", "time": "%d.%m.%Y %H:%M", "columns": {
            "user_id": "customer", "item_id": "sku", "rating": "stars", "timestamp": "bought_at"}},
        "users": {"path": "shop/customers.csv", "columns": {"user_id": "customer"}},
        "items": {"path": "shop/products.jsonl", "columns": {"item_id": "sku", "title": "product_name"},
                  "attributes": ["colour"]}}
    events = found["tables"]["interactions"]
    assert (events["rows"], events["users"], events["items"]) == (4, 2, 3)
    assert (events["first"], events["last"]) == ("2024-01-31 10:00:00", "2024-02-01 11:31:00")
    assert events["rejected"]["timestamp is not of the format %d.%m.%Y %H:%M"]["examples"] == [
        "orders.csv:5: 9,a,soon,1"]
    assert found["orphans"]["items"] == {"unknown": 1, "of": 3, "examples": ["zz"], "alike": {}}
    assert found["tables"]["users"]["columns"]["city"]["use"] == "not read"
    prompts = {(row["entity"], row["id"]): row["prompt"] for row in found["prompts"]}
    assert "Red kettle" in prompts["user", "7"] and "Bonn" not in prompts["user", "7"]
    assert "Blue cup" in prompts["item", "b"]


def command(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["dare-job", "data", "inspect", "--json", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return json.loads(capsys.readouterr().out)


def test_a_proposed_mapping_is_read_as_it_is_saved(tmp_path, monkeypatch, capsys):
    folder, mapping = shop(tmp_path / "shop"), tmp_path / "mapping.yaml"
    options = ["--input", folder, "--set", "input.max_reject_share=1"]
    first = command(monkeypatch, capsys, *options, "--save", mapping)
    second = command(monkeypatch, capsys, *options, "--config", mapping)
    assert second["proposal"] is None and second["format"] == "tables"
    assert [second[key] for key in ("tables", "orphans", "prompts")] == [
        first[key] for key in ("tables", "orphans", "prompts")]


def test_a_known_input_is_shown_with_repeated_ids(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"user_id": ["u"] * 2, "item_id": ["a", "b"], "timestamp": [1, 2]}),
                   folder / "interactions.parquet")
    pq.write_table(pa.table({"item_id": ["a", "a"], "title": ["A", "A again"], "colour": ["red", "red"]}),
                   folder / "items.parquet")
    found = inspect(config(folder))
    assert (found["format"], found["proposal"], found["unused"]) == ("parquet", None, {"items": ["colour"]})
    assert (found["tables"]["items"]["duplicates"], found["tables"]["items"]["items"]) == (1, 1)


def test_ids_that_two_tables_write_differently_are_shown(tmp_path, capsys):
    from dare_job.cli.inspect_screen import show

    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp", "u,42,1", "u,zz,1",
                                                      "u,7,1"],
                   items_csv=["item_id,title", "0042,A", "7,B"])
    found = inspect(config(folder))
    assert found["orphans"]["items"] == {"unknown": 2, "of": 3, "examples": ["42", "zz"],
                                         "alike": {"42": "0042"}}
    show(found)
    assert "interactions has 42, items has 0042" in " ".join(capsys.readouterr().out.split())


def test_columns_that_only_choose_rows_and_those_left_out_are_no_attributes(tmp_path):
    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp,event", "u,a,1,buy"],
                   users_csv=["user_id,city,email,active", "u,Bonn,u@example.com,yes"])
    tables = {"interactions": {"path": "interactions.csv", "where": {"event": ["buy"]}},
              "users": {"path": "users.csv", "attributes": "all", "all_but": ["email"],
                        "where": {"active": ["yes"]}}}
    found = inspect(JobConfig(input=InputSettings(path=str(folder), tables=tables)))
    uses = {name: column["use"] for table in ("interactions", "users")
            for name, column in found["tables"][table]["columns"].items()}
    assert uses["event"] == "which rows are read" and uses["email"] == "not read"
    assert uses["city"] == uses["active"] == "attribute"


def test_what_a_mapping_chooses_is_compared_with_what_is_there(tmp_path, caplog):
    """Nothing was said of a value that no row has, of a key that no object has, and of a wrong unit."""
    folder = write(tmp_path / "in", log_jsonl=[json.dumps({"user_id": "u", "item_id": "a", "event": "buy",
                                                           "timestamp": 1700000000000})],
                   products_jsonl=[json.dumps({"item_id": "a", "title": "A"})])
    log = {"path": "log.jsonl", "time": "us"}
    look = [{"interactions": log, "items": {"path": "products.jsonl", "attributes": ["brand"]}},
            {"interactions": {**log, "where": {"event": ["Buy"]}}}]
    for tables in look:
        inspect(JobConfig(input=InputSettings(path=str(folder), tables=tables)))
    assert ("products.jsonl: the first objects have no brand, which input.tables.items.attributes names "
            "(keys found: item_id, title)") in caplog.text
    of_unit = "the oldest is of {}, the newest of {} (UTC): check the unit, input.tables.interactions.time"
    assert of_unit.format("1970-01-20", "1970-01-20") in caplog.text
    assert ("log.jsonl is read (input.tables.interactions.where: event is one of Buy)") in caplog.text
    write(folder, log_jsonl=[json.dumps({"user_id": "u", "item_id": "a", "timestamp": time})
                             for time in (1700000000, 1700000000000)])  # two units in one column
    inspect(JobConfig(input=InputSettings(path=str(folder), tables={"interactions": {**log, "time": "ms"}})))
    assert of_unit.format("1970-01-20", "2023-11-14") in caplog.text


def test_an_attribute_that_no_prompt_can_show_is_named(tmp_path, caplog):
    """An object without a name, such as a price with its currency, was called an attribute."""
    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp", "u,a,1"],
                   items_jsonl=[json.dumps({"item_id": "a", "title": "A", "brand": {"name": "B"},
                                            "price": {"amount": 1}})])
    tables = {"items": {"attributes": ["brand", "price"]}}
    inspect(JobConfig(input=InputSettings(path=str(folder), tables=tables)))
    assert "items: no row has a value of the attribute price that a prompt can show" in caplog.text
    assert "attribute brand" not in caplog.text


def test_the_screen_has_no_escapes_of_the_data(tmp_path, capsys):
    from dare_job.cli.inspect_screen import show

    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp", "\x1b[31mu,a,1",
                                                      "v,a,x\x1b[0m"],
                   items_csv=["item_id,title", "a,A\x1b[2J"])
    show(inspect(config(folder)))
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "rejected: timestamp is neither" in printed


def test_an_input_without_users_and_items_is_refused(tmp_path):
    folder = write(tmp_path / "in", numbers_csv=["x,y", "1,2"])
    with pytest.raises(DataError, match=r"known as ids of users and items \(columns found: "
                       r"numbers.csv: x, y\).*interactions: \{path: numbers.csv, columns: \{user_id: COLUMN"):
        inspect(config(folder))


def test_a_proposal_that_cannot_be_read_is_shown_and_saved(tmp_path, monkeypatch, capsys):
    folder = write(tmp_path / "in", log_csv=["uid,sku,ts", "u,a,1"])
    write(folder / "items", a_csv=["sku,name", "a,A"], b_csv=["sku", "b"])
    write(folder / "items", b_csv=[])
    (folder / "items" / "b.csv").write_bytes("sku,name".encode("utf-16"))
    monkeypatch.setattr("sys.argv", ["dare-job", "data", "inspect", "--json", "--input", str(folder),
                                     "--save", str(tmp_path / "mapping.yaml")])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 4 and "with the proposed mapping: " in printed.err
    assert json.loads(printed.out)["error"].endswith("convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    assert "path: log.csv" in (tmp_path / "mapping.yaml").read_text()


def test_a_file_is_saved_only_with_a_proposal_and_over_no_other(tmp_path, monkeypatch, capsys):
    """Nothing was said where nothing was written, and a corrected mapping was written over."""
    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp", "u,a,1"])
    mapping = tmp_path / "mapping.yaml"
    monkeypatch.setattr("sys.argv", ["dare-job", "data", "inspect", "--json", "--input", str(folder),
                                     "--save", str(mapping)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code and f"{mapping} was not written: " in capsys.readouterr().err
    mapping.write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, mapping.read_text()) == (2, "mine")


@pytest.mark.parametrize(("name", "data", "message"), [
    ("interactions.feather", b"ARROW1\0\0", r"interactions.feather is Feather \(Arrow\), which is not read: "
     "convert it to Parquet or CSV"),
    ("interactions.csv.xz", b"\xfd7zXZ\0", "interactions.csv.xz is compressed with xz, which is not read"),
    ("interactions/part-0.orc", b"ORC\0", "no file that can be read: part-0.orc is ORC, which is not read"),
    ("interactions.csv", b"\x1f\x8b\x08\0", "does not end with .gz: rename it")])
def test_a_file_of_a_format_that_is_not_read_is_named(tmp_path, name, data, message):
    """The message named the items as the only table, or told to read the file as text."""
    folder = write(tmp_path / "in", items_csv=["item_id,title", "a,A"])
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    with pytest.raises(DataError, match=message) as raised:
        inspect(config(folder))
    assert "path: items.csv" not in str(raised.value)


def test_columns_of_folders_are_named_and_may_be_missing_in_a_file(tmp_path):
    """Nothing named them where nobody asked, and a file outside of such a folder stopped the run."""
    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp", "u,a,1"])
    write(folder / "items" / "genre=Drama" / "year=1999", a_csv=["item_id,title", "a,A"])
    write(folder / "items", a0_csv=["item_id,title", "b,B"])
    for asked, use, unused in ((None, "not read", ["genre", "year"]), (["genre"], "attribute", ["year"])):
        found = inspect(JobConfig(input=InputSettings(path=str(folder),
                                                      tables={"items": {"attributes": asked}})))
        assert found["tables"]["items"]["columns"]["genre"]["use"] == use
        assert found["unused"] == {"items": unused}
        assert found["tables"]["items"]["rows"] == 2


@pytest.mark.parametrize(("row", "setting"), [
    ("u,a,20260131,1", "interactions.time=%Y%m%d"), ("u,a,soon,1", "interactions.time=ms"),
    ("u,a,,1", "columns={timestamp: COLUMN}"), ("u,a,1,x", "decimal=comma"), ("u,a,1,9", "rating_range=[LOW"),
    ("u,a,1,1e999", "columns={rating: COLUMN}, {rating: null}"),
    ("u,a,1,-Infinity", "The right column, or none: "), ("u,a,1", "separator=';', "),
    (",a,1,1", "columns={user_id: COLUMN}")])
def test_each_reason_of_a_rejected_row_names_a_setting(tmp_path, capsys, row, setting):
    from dare_job.cli.inspect_screen import show

    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp,rating", "u,a,1,1", row])
    tables = {"interactions": {"rating_range": [1, 5]} if row.endswith("9") else {}}
    found = inspect(config(folder).model_copy(update={"input": InputSettings(
        path=str(folder), max_reject_share=1.0, tables=tables)}))
    rejected, = found["tables"]["interactions"]["rejected"].values()
    assert setting in rejected["hint"]
    show(found)
    assert setting in capsys.readouterr().out


def test_reasons_of_other_formats_name_a_setting():
    for reason, setting in (("not a JSON object", "items.format=csv"), ("item_id is not in links.csv", "ids"),
                            ("item_id is not a whole number", "items.columns={item_id: COLUMN}"),
                            ("item_id is dict, no id", 'items.query="SELECT object.key AS item_id'),
                            ("item_id is list, no id", 'items.query="SELECT item_id[0] AS item_id'),
                            ("title is an object without a name", 'items.query="SELECT object.key AS title'),
                            ("timestamp is bool, no number", "columns={timestamp: COLUMN}")):
        assert setting in hint("items", reason)


def test_items_without_a_title_are_counted(tmp_path, capsys):
    """Nothing was said of them, nor of an object of languages, of which none is chosen."""
    from dare_job.cli.inspect_screen import show

    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp", "u,a,1"],
                   items_jsonl=[json.dumps({"item_id": name, "title": title})
                                for name, title in (("a", None), ("b", "B"), ("c", {"en": "C"}))])
    found = inspect(config(folder))
    assert found["tables"]["items"]["untitled"] == 1
    show(found)
    printed = " ".join(capsys.readouterr().out.split())
    assert "items (1 file): 3 rows, 1 item without a title, which get no texts" in printed
    assert "rejected: title is an object without a name: a query can read one of its keys as title" in printed


def test_an_error_has_no_escapes_of_the_data(tmp_path, monkeypatch, capsys):
    folder = write(tmp_path / "in", interactions_csv=["user_id,\x1b[31mitem,timestamp", "u,a,1"])
    monkeypatch.setattr("sys.argv", ["dare-job", "data", "inspect", "--input", str(folder), "--set",
                                     "input.tables.interactions.path=interactions.csv"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert "columns found: user_id, \ufffd[31mitem" in printed and "\x1b" not in printed


def test_a_value_that_no_row_has_is_named(tmp_path, caplog):
    """Half of the events were lost without a word."""
    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp,event", "u,a,1,play",
                                                      "v,a,1,Purchase"])
    tables = {"interactions": {"where": {"event": ["play", "purchase"]}}}
    found = inspect(JobConfig(input=InputSettings(path=str(folder), tables=tables)))
    assert found["tables"]["interactions"]["rows"] == 1
    assert ("interactions: none of the rows that were read has purchase in the column event, which "
            "input.tables.interactions.where names; upper and lower case differ") in caplog.text


def test_keys_of_later_objects_are_listed(tmp_path):
    """An address was shown to the model, and nobody could know it."""
    lines = [{"item_id": str(at), "title": "A", "__index_level_0__": at} for at in range(1001)]
    lines.append({"item_id": "z", "title": "Z", "mail": "x@y.z"})
    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp", "u,0,1"],
                   items_jsonl=list(map(json.dumps, lines)))
    found = inspect(JobConfig(input=InputSettings(path=str(folder), tables={"items": {"attributes": "all"}})))
    columns = found["tables"]["items"]["columns"]
    assert columns["mail"] == {"type": "text", "use": "attribute"}
    assert columns["__index_level_0__"] == {"type": "text", "use": "not read"}  # a column of pandas


def test_names_in_another_composition_are_said_to_be_so(tmp_path, capsys):
    """All items were unknown, and a column was missing that looked as if it was there."""
    from dare_job.cli.inspect_screen import show

    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp", "u,cafe\u0301,1"],
                   items_csv=["item_id,title", "caf\xe9,A"])
    found = inspect(config(folder))
    assert found["orphans"]["items"]["alike"] == {"cafe\u0301": "caf\xe9"}
    show(found)
    assert "They look alike, but encode accents in different ways (Unicode" in capsys.readouterr().out
    tables = {"interactions": {"columns": {"user_id": "caf\xe9"}}}
    write(folder, interactions_csv=["cafe\u0301,item_id,timestamp", "u,a,1"])
    with pytest.raises(DataError, match="user_id: cafe\u0301}. Copy the name from here: it looks like"):
        inspect(JobConfig(input=InputSettings(path=str(folder), tables=tables)))


def test_a_rating_that_may_mean_none_is_named(tmp_path, capsys, caplog):
    from dare_job.cli.inspect_screen import show

    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp,rating", "u,a,1,-1",
                                                      "u,b,1,7.5"])
    found = inspect(config(folder))
    assert found["tables"]["interactions"]["ratings"] == [-1, 7.5]
    show(found)
    assert "1 user, 2 items, ratings -1 to 7.5, " in capsys.readouterr().out
    assert "-1 is the only negative rating: if it stands for a missing rating" in caplog.text
    caplog.clear()
    write(folder, interactions_csv=["user_id,item_id,timestamp,rating", "u,a,1,-1", "u,b,1,-2", "u,b,1,1"])
    assert inspect(config(folder)) and "negative rating" not in caplog.text


def test_titles_that_python_wrote_for_missing_values_are_named(tmp_path, caplog):
    folder = write(tmp_path / "in", interactions_csv=["user_id,item_id,timestamp", "u,a,1"],
                   items_csv=["item_id,title", "a,None", "b,B"])
    inspect(config(folder))
    assert "have the title None" not in caplog.text  # it may be one
    write(folder, items_csv=["item_id,title", "a,None", "b,None"])
    inspect(config(folder))
    assert "items: 2 rows have the title None, which may stand for a missing value" in caplog.text
