"""Reading without Spark gives the rows and the prompts of the run, for every format."""

import gzip
import json
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.config.settings import InputSettings, JobConfig
from dare_job.data.input import preview_rows as rows
from dare_job.data.input import sample, values
from dare_job.data.input.prepare import read_input
from dare_job.data.input.source import opened
from dare_job.errors import DataError
from dare_job.schemas import ENTITIES, INTERACTIONS, PLAN
from dare_job.stages import plan
from dare_job.tables import published, stage_inputs


def put(folder, name, lines, encoding="utf-8"):
    folder.mkdir(exist_ok=True)
    data = "".join(line + "\n" for line in lines).encode(encoding)
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def movielens_1m(folder):
    bad = ["1::1", "::1::4::978300275", "1::2::six::978300275", "1::2::9::978300275", "1::2::4::soon",
           "1::2::::978300275", "", "3::1::5::99999999999999", " 2 :: 1 :: 4.5 :: 978300276 "]
    put(folder, "ratings.dat", ["1::1::5::978300760", "1::2::3::978302109", "2::1::4::978300275",
                                "2::1::4::978300275", "2::3::1::978824291", *bad])
    put(folder, "users.dat", ["1::F::1::10::48067", "2::M::56::16::70072", "3::X::7::99::1"])
    return put(folder, "movies.dat", [
        "1::Toy Story (1995)::Animation|Children's|Comedy", "2::Misérables, Les (1995)::Drama",
        "3::Aliens: The Return (1986)::(no genres listed)", "1::Again (1999)::Drama", "4:: ::Drama"],
        "latin-1")


def movielens_latest(folder):
    put(folder, "ratings.csv", [
        "\ufeffuserId,movieId,rating,timestamp", "1,11,4.5,964982703", "1,12,,964982704", "1,12,4.5",
        '"2","11",1e0,964982705', "2,13,5.0,964982706"])
    return put(folder, "movies.csv", [
        "movieId,title,genres", '11,"American President, The (1995)",Comedy|Drama',
        '12,"Say ""Cheese"" Ŝtelo (2001)",(no genres listed)', "13,Plain,Drama", "14,Too,many,fields"])


def amazon_files(folder):
    put(folder, "reviews.json.gz", [
        json.dumps({"reviewerID": "A2", "asin": "1", "overall": 5.0, "unixReviewTime": 1300000000}),
        json.dumps({"user_id": "AE", "asin": "B1-red", "parent_asin": "2", "rating": 4.0,
                    "timestamp": 1588687728923}),
        json.dumps({"user_id": " ", "parent_asin": "2", "rating": 4, "timestamp": 1}),
        json.dumps({"user_id": "AE", "parent_asin": "3", "rating": 11, "timestamp": 1}),
        json.dumps({"user_id": "AE", "parent_asin": "3", "rating": None, "timestamp": 1588687729000}),
        '{"user_id": "AE", "parent_asin": ', "[]"])
    return put(folder, "meta.jsonl", [
        "{'asin': '1', 'title': \"Bob's &amp; Lip\", 'brand': 'Acme', 'salesRank': {'Beauty': 3},"
        " 'categories': [['Beauty', 'Lips'], ['Beauty', 'Gifts']]}",
        r"{u'asin': u'2', u'title': u'caf\xe9 \u2603', 'brand': 'A\'s', 'new': True}",
        json.dumps({"parent_asin": "3", "title": " Brush ", "main_category": "All Beauty", "categories": [],
                    "store": "Shop"}),
        json.dumps({"parent_asin": "3", "title": "Brush again", "categories": None}),
        json.dumps({"parent_asin": "4", "title": 7, "category": "One"}), "{'asin': '5', 'title': None}"])


def parquet_files(folder):
    (folder / "interactions").mkdir(parents=True)
    pq.write_table(pa.table({
        "user_id": pa.array([1.0, 2.0, None, 2.5, float("nan"), 1.0]),
        "item_id": pa.array([7, 8, 7, 7, 7, 7]),
        "rating": pa.array([4.1, float("nan"), 1.0, 1.0, 1.0, None], pa.float32()),
        "timestamp": pa.array([datetime(2020, 1, 1, 1)] * 6, pa.timestamp("us"))}),
        folder / "interactions" / "part 1.parquet")
    pq.write_table(pa.table({
        "user_id": ["1", " ", "x", "x"], "item_id": ["7", "7", "9", "9"],
        "rating": ["4", "4", "+3.5 ", "inf"],
        "timestamp": ["5", "5", " 6", "7.5"]}), folder / "interactions" / "part 2.parquet")
    pq.write_table(pa.table({
        "item_id": [7, 8, 7, 9], "title": ["x", "", "again", "Nine"], "price": [1.5, 1e7, 2.0, None],
        "weight": pa.array([0.1, 1e-5, 3.0, 4.0], pa.float32()), "colour": ["red", " ", None, "blue"],
        "since": pa.array([date(2020, 1, 2)] * 4), "at": pa.array([datetime(2020, 1, 2, 3, 4, 5, 600)] * 4),
        "sold": [True, False, True, None], "cost": pa.array([Decimal("1.50")] * 4, pa.decimal128(9, 2))}),
        folder / "items.parquet")
    pq.write_table(pa.table({"user_id": ["1", "x"], "attributes": [{"age": 30, "city": None},
                                                                   {"age": None, "city": "Bonn"}]}),
                   folder / "users.parquet")
    return folder


def tables(settings, temporary):
    """Interactions, users and items as they are read without Spark."""
    with opened(settings, temporary) as source:
        events = [{name: row[name] for name in INTERACTIONS.names}
                  for batch in sample.batches(source.tables["interactions"])
                  for row in batch.to_pylist() if row["problem"] is None]
        found = []
        for part in (source.tables.get("users"), source.tables.get("items")):
            ids = [name for batch in sample.batches(part) for name in batch.column(0).to_pylist() if name] \
                if part else []
            found.append(sample.entities(part, 0, 0, ids))
    return events, *found


@pytest.mark.parametrize("make", [
    amazon_files, *(pytest.param(make, marks=pytest.mark.slow)
                    for make in (parquet_files, movielens_1m, movielens_latest))])
def test_the_rows_are_those_that_spark_keeps(spark, tmp_path, make):
    settings = InputSettings(path=str(make(tmp_path / "input")), max_reject_share=1.0)
    read_input(settings, tmp_path / "into", spark)
    expected = {name: pq.read_table(tmp_path / "into" / f"{name}.parquet").to_pylist()
                for name in ("interactions", "users", "items")}
    events, users, items = tables(settings, tmp_path)

    def order(row):
        return row["user_id"], row["item_id"], row["timestamp"], row["rating"] or 0

    assert sorted(events, key=order) == sorted(expected["interactions"], key=order)
    assert {name: user.attributes for name, user in users.items()} == {
        row["user_id"]: dict(row["attributes"]) for row in expected["users"]}
    assert {name: (item.title, item.attributes) for name, item in items.items()} == {
        row["item_id"]: (row["title"], dict(row["attributes"])) for row in expected["items"]}
    assert expected["interactions"] and expected["items"]


@pytest.mark.parametrize(("make", "history"), [
    (movielens_1m, {"window": "old", "share": 0.6, "min_rating": 2}),
    pytest.param(amazon_files, {}, marks=pytest.mark.slow),
    pytest.param(movielens_1m, {"repeats": "newest"}, marks=pytest.mark.slow),
    pytest.param(movielens_1m, {}, marks=pytest.mark.slow),
    pytest.param(parquet_files, {"window": "new", "max_items": 1}, marks=pytest.mark.slow)])
def test_prompts_are_those_of_the_plan_byte_for_byte(make_job, tmp_path, make, history):
    settings = {"input": {"path": str(make(tmp_path / "input")), "max_reject_share": 1.0}, "history": history,
                "prompts": {"user": "kar", "item": "kar"}}
    job = make_job(settings, day="2026-01-02")
    plan.run(job)
    planned = {(entity, row["entity_id"]): (row["prompt"], row["error"]) for entity in ENTITIES
               for row in published.dataset(stage_inputs.stage_folder(job, "plan", entity), PLAN)
               .to_table().to_pylist()}
    found = rows.prompts(rows.choose(job.config, job.space.day, 100), job.config)
    assert len(found) > 3
    assert {(row.entity, row.entity_id) for row in found} == {name for name, (prompt, _) in planned.items()
                                                              if prompt}
    assert all(planned[row.entity, row.entity_id] == (row.prompt, row.error) for row in found)


def config(path, **settings):
    return JobConfig.model_validate({"input": {"path": str(path), "max_reject_share": 1.0}, **settings})


def test_a_sample_is_seeded_and_does_not_depend_on_the_order_of_rows(tmp_path, write_tables):
    events = [(f"u{user}", f"i{user % 7}", 4.0, user) for user in range(300)]
    items = [(f"i{item}", f"Film {item}" if item else "", []) for item in range(7)]
    day, found = date(2026, 1, 2), []
    for name, order, seed in (("a", 1, 0), ("b", -1, 0), ("c", 1, 1)):
        folder = write_tables(tmp_path / name, events[::order], [], items[::order])
        found.append(rows.choose(config(folder, seed=seed), day, 5))
    assert found[0] == found[1] != found[2]
    assert len(found[0].histories) == 5 and all(found[0].histories.values())
    assert len(found[0].described) == 5 and "i0" not in found[0].described


def test_users_without_a_usable_history_are_passed_over(tmp_path, write_tables):
    events = [(f"u{user}", "good" if user == 250 else "untitled", 4.0, user) for user in range(300)]
    folder = write_tables(tmp_path / "input", events, [], [("good", "Good", []), ("untitled", " ", [])])
    assert list(rows.choose(config(folder), date(2026, 1, 2), 1).histories) == ["u250"]


def test_named_rows_and_those_that_are_missing(tmp_path):
    settings = config(movielens_1m(tmp_path / "input"))
    day = date(2026, 1, 2)
    chosen = rows.choose(settings, day, 5, [("user", "2"), ("item", "3"), ("user", "3")])
    assert (list(chosen.histories), chosen.described) == (["2", "3"], ["3"])
    found = rows.prompts(chosen, settings)
    assert [row.error for row in found] == [None, "empty history", None]
    assert found[0].titles == ("Toy Story (1995)", "Toy Story (1995)", "Aliens: The Return (1986)")
    with pytest.raises(DataError, match="has no user 9, u8 .--ids"):
        rows.choose(settings, day, 5, [("user", "9"), ("user", "u8")])
    with pytest.raises(DataError, match="neither a user with a history before the end of 1999-01-01"):
        rows.choose(config(write_empty(tmp_path / "empty")), date(1999, 1, 1), 5)


def write_empty(folder):
    folder.mkdir()
    pq.write_table(pa.table({"user_id": ["u"], "item_id": ["i"], "timestamp": [2**31]}),
                   folder / "interactions.parquet")
    return folder


def test_1m_sequences_and_100k(tmp_path):
    folder = put(tmp_path / "1m", "movies.dat", ["1::Toy Story (1995)::Comedy", "3::Aliens (1986)::Action"])
    put(folder, "user_list.txt", ["org_id remap_id", "2 0", "1 1"])
    put(folder, "item_list.txt", ["org_id remap_id title", "3 0 x", "1 1 y"])
    put(folder, "sequences_full.txt.gz", ["0 1 0", "1 0 9"])
    events, _, items = tables(InputSettings(path=str(folder)), tmp_path)
    assert [(row["user_id"], row["item_id"], row["timestamp"]) for row in events] == [
        ("2", "1", 0), ("2", "3", 1), ("1", "3", 0)]
    assert items["3"].attributes == {"genre": "Action", "year": "1986"}
    folder = put(tmp_path / "100k", "u.data", ["196\t242\t3\t881250949"])
    put(folder, "u.user", ["196|49|M|writer|55105", "186|17|F|student|00000"])
    flags = "|".join("1" if place in (5, 14) else "0" for place in range(19))
    put(folder, "u.item", [f"242|Café (1996)|01-Jan-1996||http://x|{flags}"], "latin-1")
    events, users, items = tables(InputSettings(path=str(folder)), tmp_path)
    assert events == [{"user_id": "196", "item_id": "242", "rating": 3.0, "timestamp": 881250949}]
    assert {name: user.attributes for name, user in users.items()} == {
        "196": {"gender": "male", "age": "45-49", "occupation": "writer"},
        "186": {"gender": "female", "age": "under 18", "occupation": "student"}}
    assert items["242"].attributes == {"genre": "Comedy", "other_genres": "Romance", "year": "1996"}


@pytest.mark.parametrize(("value", "text"), [
    (1.5, "1.5"), (7.0, "7"), (1e7, "10000000"), (1.234e-5, "1.234e-05"), (-0.001, "-0.001"), (True, "true"),
    (b"\xff", "ff"), ({"b", "a"}, "a, b"), (Decimal("1E+2"), "100"), (date(2020, 1, 2), "2020-01-02"),
    (datetime(2020, 1, 2, 3, 4, 5), "2020-01-02 03:04:05"), (datetime(2020, 1, 2), "2020-01-02"),
    (float("nan"), ""), (12, "12"), (["a", ["b", "a"], None], "a, b"), ({"id": 1, "name": "Drama"}, "Drama")])
def test_values_as_text(value, text):
    assert values.as_text(value) == text
