"""Which columns, files and formats of times `dare-job data inspect` proposes."""

import pyarrow as pa
import pytest
import yaml
from input_rows import config, write

from dare_job.data.input.guess import time_format
from dare_job.data.inspect import inspect
from dare_job.errors import DataError


def test_columns_in_camel_case_are_proposed(tmp_path):
    """A mapping took supplierId, isDeleted and createdAt as attributes, which prompts show."""
    folder = write(tmp_path / "in", log_csv=["userId,productId,starRating,eventTimestamp",
                                             "u,a,4,1700000000000"],
                   products_csv=["productId,productName,brand,supplierId,isDeleted,createdAt",
                                 "a,A,B,1,no,2020"])
    text = inspect(config(folder))["proposal"]
    assert yaml.safe_load(text) == {"input": {"format": "auto", "tables": {
        "interactions": {"path": "log.csv", "time": "ms", "columns": {
            "user_id": "userId", "item_id": "productId", "rating": "starRating",
            "timestamp": "eventTimestamp"}},
        "items": {"path": "products.csv", "columns": {"item_id": "productId", "title": "productName"},
                  "attributes": ["brand"]}}}}


def test_a_decimal_comma_is_proposed(tmp_path):
    folder = write(tmp_path / "in", log_csv=["user_id;item_id;rating;timestamp", "u;a;4,5;1", "u;b;3;2"])
    found = inspect(config(folder))
    assert yaml.safe_load(found["proposal"])["input"]["tables"]["interactions"]["decimal"] == "comma"
    assert [row["rating"] for row in found["tables"]["interactions"]["sample"]] == [4.5, 3.0]


def test_several_files_with_equal_columns_are_one_table(tmp_path):
    folder = write(tmp_path / "in", part_1_csv=["customer,sku,bought_at", "7,a,2024-01-31", "7,a,2024-01-31"],
                   part_2_csv=["customer,sku,bought_at", "8,b,2024-01-31"], names_csv=["sku,name", "a,A"])
    found = inspect(config(folder))
    assert yaml.safe_load(found["proposal"])["input"]["tables"]["interactions"]["path"] == "part_*.csv"
    events = found["tables"]["interactions"]
    assert (events["rows"], events["files"], events["duplicates"]) == (3, 2, 1)


def test_a_pattern_that_names_another_table_is_not_proposed(tmp_path, caplog):
    """*s.csv named products.csv as well, the mapping failed, and nothing was proposed."""
    rows = ["uid,sku,ts", "u,a,1", "u,a,2"]
    folder = write(tmp_path / "in", clicks_csv=rows[:2], purchases_csv=rows, users_csv=["uid,age", "u,30"],
                   products_csv=["sku,name", "a,A"])
    found = inspect(config(folder))
    assert yaml.safe_load(found["proposal"])["input"]["tables"]["interactions"]["path"] == "purchases.csv"
    assert ("clicks.csv, purchases.csv have the same columns, but the pattern *s.csv names products.csv, "
            "users.csv, too") in caplog.text


@pytest.mark.parametrize(("times", "form"), [
    (["20231114100500", "20231115110700"], "%Y%m%d%H%M%S"), (["202311141005", "202311150107"], "%Y%m%d%H%M"),
    (["2023-11-14 10:00:00 UTC", "2023-11-14 10:00:00.5 UTC"], None),
    (["11/14/2023 9:05 AM", "11/14/2023 9:05 PM"], "%m/%d/%Y %I:%M %p"), (["14-Nov-2023"], "%d-%b-%Y"),
    (["14.11.23", "15.11.23"], "%d.%m.%y"), (["14/Nov/2023:10:00:00 +0100"], "%d/%b/%Y:%H:%M:%S %z"),
    (["31/01/2023, 10:00:00"], "%d/%m/%Y, %H:%M:%S"),
    (["1/31/2023, 10:00:00 AM"], "%m/%d/%Y, %I:%M:%S %p"),
    (["Tue, 14 Nov 2023 10:00:00 +0100"], "%a, %d %b %Y %H:%M:%S %z"),
    (["Tue, 14 Nov 2023 10:00:00 GMT"], "%a, %d %b %Y %H:%M:%S GMT"),
    (["1700000000"], None), (["1700000000000"], "ms"), (["1700000000000000"], "us"), (["soon"], None),
    (["20231114"], "%Y%m%d"), (["3/4/23 17:00", "13/4/23 17:00"], "%d/%m/%y %H:%M")])
def test_formats_of_times_are_guessed(tmp_path, times, form):
    rows = [f'u,a,"{time}"' for time in times]
    found = inspect(config(write(tmp_path / "in", log_csv=["uid,sku,created_at", *rows])))
    proposed = yaml.safe_load(found["proposal"])["input"]["tables"]["interactions"]
    assert proposed.get("time") == form
    year = found["tables"]["interactions"]["first"]
    assert (year or "")[:4] == ("" if times == ["soon"] else "2023")


@pytest.mark.parametrize(("times", "other"), [(["03/04/2023", "05/06/2023"], "%d/%m/%Y"),
                                              (["03/04/2023", "05/16/2023"], None),
                                              (["03.04.2023"], None), (["2023-03-04"], None)])
def test_times_that_could_be_others_are_named(tmp_path, caplog, times, other):
    """Either the day or the month comes first: all times were wrong without a word."""
    folder = write(tmp_path / "in", log_csv=["uid,sku,created_at", *[f"u,a,{time}" for time in times]])
    text = inspect(config(folder))["proposal"]
    doubt = f"the first times fit {other} as well as %m/%d/%Y: which comes first, the day or the month?"
    assert text.startswith(f"# interactions: {doubt}\n" if other else "input:")
    assert (doubt in caplog.text) == bool(other)


def test_a_format_that_reads_few_of_the_times_is_not_proposed():
    """A format that read none was the best one."""
    assert time_format(pa.array(["20260231", "20260230", "20260101"])) is None
    assert time_format(pa.array(["20260101", "20260102", "20260230"])) == "%Y%m%d"


@pytest.mark.parametrize(("column", "values", "taken"), [
    ("playtime", ["0", "5000"], None), ("purchase_time", ["1699920000"], "purchase_time"),
    ("play_date", ["20231114"], "play_date"), ("buy_time", ["soon"], "buy_time")])
def test_durations_are_no_times(tmp_path, column, values, taken):
    folder = write(tmp_path / "in", log_csv=[f"uid,sku,{column}", *[f"u,a,{value}" for value in values]])
    proposed = yaml.safe_load(inspect(config(folder))["proposal"])["input"]["tables"]["interactions"]
    assert proposed["columns"]["timestamp"] == taken


def test_what_a_proposal_cannot_know_is_written_beside_it(tmp_path, caplog):
    folder = write(tmp_path / "in", log_csv=["uid,sku,event", "u,a,view", "u,a,buy"])
    found = inspect(config(folder))
    assert found["proposal"].splitlines()[:2] == [
        "# interactions: no column has times: the order of the rows counts as that of the times",
        "# interactions: all rows are read; where: {event: [...]} reads only some of buy, view"]
    assert found["tables"]["interactions"]["first"] is None  # not 1970
    assert "interactions: no column has times" in caplog.text


@pytest.mark.parametrize(("files", "path"), [
    ({"rating_csv": ["user_id,anime_id", "u,1"], "anime_csv": ["anime_id,name", "1,A"]}, "rating.csv"),
    ({"log_csv": ["user_id,storyId", "u,1"], "stories_csv": ["id,title", "1,A"]}, "log.csv"),
    ({"orders_csv": ["user_id,order_id,name", "u,1,x"], "animals_csv": ["id,name", "1,A"]}, None),
    ({"log_csv": ["user_id,cat_id,dog_id", "u,1,1"], "cats_csv": ["cat_id,name", "1,A"],
      "dog_csv": ["dog_id,name", "1,A"]}, None)])
def test_an_id_named_after_a_table_is_that_of_items(tmp_path, files, path):
    folder = write(tmp_path / "in", **files)
    if path is None:
        with pytest.raises(DataError, match="no table has columns that are known as ids of users and items"):
            inspect(config(folder))
    else:
        found = inspect(config(folder))
        assert yaml.safe_load(found["proposal"])["input"]["tables"]["interactions"]["path"] == path
        assert found["orphans"]["items"]["unknown"] == 0


@pytest.mark.parametrize(("files", "items", "notes"), [
    ({"categories_csv": ["id,name", "1,A"], "products_csv": ["product_id,name", "1,P"]}, "products.csv", 0),
    ({"brands_csv": ["id,name", "1,A"], "products_csv": ["id,name", "1,P"]}, "products.csv", 0),
    ({"brands_csv": ["id,name,x", "1,A,x"], "products_1_csv": ["id,name", "1,P"],
      "products_2_csv": ["id,name", "2,P"]}, "products_*.csv", 0),
    ({"more_csv": ["product_id,name", "1,A"], "products_csv": ["product_id,name,x", "1,P,x"]},
     "products.csv", 0),
    ({"brands_csv": ["id,name", "1,A"], "goods_csv": ["id,name,x", "1,P,x"]}, "brands.csv", 1)])
def test_the_table_of_items_has_their_id_or_name(tmp_path, caplog, files, items, notes):
    """The first one with any id was taken, such as that of the categories."""
    folder = write(tmp_path / "in", orders_csv=["customer_id,product_id,ordered_at", "u,1,2023-11-14"],
                   **files)
    text = inspect(config(folder))["proposal"]
    assert yaml.safe_load(text)["input"]["tables"]["items"]["path"] == items
    note = "items: goods.csv has ids and titles, too, and is not read"
    assert text.count("# items:") == notes and text.startswith(f"# {note}\n") == bool(notes)
    assert (note in caplog.text) == bool(notes)


def test_the_number_of_a_row_is_no_item(tmp_path):
    folder = write(tmp_path / "in", orders_csv=["id,customer_id,product,ordered_at", "1,u,7,2023-11-14"],
                   products_csv=["id,name", "7,A"])
    found = inspect(config(folder))
    columns = yaml.safe_load(found["proposal"])["input"]["tables"]["interactions"]["columns"]
    assert columns["item_id"] == "product" and found["orphans"]["items"]["unknown"] == 0


@pytest.mark.parametrize(("names", "others", "path"), [
    (["dt=2026-01-01", "dt=2026-01-02"], [], "dt=[0-9]*"), (["2026-09", "2026-10"], [], "[0-9]*"),
    (["orders_2026_01", "orders_2026_02"], ["products"], "orders_[0-9]*"),
    (["2026-01-01.csv", "2026-02-01.csv"], ["products.csv"], "[0-9]*.csv"),
    (["orders_2026_01.csv", "orders_2026_02.csv"], ["orders_2025_01.csv"], "orders_2026_0*.csv"),
    (["orders[2026-01].csv", "orders[2026-02].csv"], ["products.csv"], "orders[[][0-9]*].csv"),
    (["a[1]/b1.csv", "a[1]/b2.csv"], [], "a[[]1]/b*.csv")])
def test_files_and_folders_of_a_series_are_one_table(tmp_path, names, others, path):
    """Only one folder was read, and brackets in names matched nothing."""
    for number, name in enumerate([*names, *others]):
        file = tmp_path / "in" / (name if name.endswith(".csv") else f"{name}/part-0.csv")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"uid,sku,ts\nu{number},a,1700000000\n" if name in names else "sku,name\na,A\n")
    found = inspect(config(tmp_path / "in"))
    assert yaml.safe_load(found["proposal"])["input"]["tables"]["interactions"]["path"] == path
    assert found["tables"]["interactions"]["rows"] == 2


def test_other_tables_of_interactions_are_named(tmp_path, caplog):
    """Half of the orders were left out without a word."""
    folder = write(tmp_path / "in", orders_1_csv=["uid,sku,ts", "u,a,1700000000"],
                   orders_2_csv=["uid,sku,ts,channel", "u,a,1700000000,web"])
    note = "interactions: orders_1.csv has users and items, too, and is not read"
    assert inspect(config(folder))["proposal"].startswith(f"# {note}\n")
    assert note in caplog.text


def test_a_column_of_attributes_is_proposed_and_must_have_objects(tmp_path, caplog):
    folder = write(tmp_path / "in", log_csv=["user,item,time", "u,a,1"],
                   products_csv=["item,name,colour,attributes", 'a,A,red,"{""brand"": ""B""}"'])
    found = inspect(config(folder))
    assert found["tables"]["items"]["sample"][0]["attributes"] == [("brand", "B")]
    assert "no row of the column attributes" not in caplog.text
    write(folder, products_csv=["item,name,attributes", "a,A,red"])
    inspect(config(folder))
    assert "items: no row of the column attributes has a name and a value" in caplog.text
