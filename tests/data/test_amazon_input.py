"""Amazon review JSON lines of both generations."""

import gzip
import json

import pyarrow.parquet as pq
import pytest

from dare_job.config.settings import InputSettings
from dare_job.data.input.amazon import _leaves
from dare_job.data.input.formats import MAX_CHARACTERS
from dare_job.data.input.prepare import read_input
from dare_job.errors import DataError

OLD_REVIEW = {"reviewerID": "A2", "asin": "0001", "overall": 5.0, "reviewText": 'said "it"',
              "unixReviewTime": 1300000000}
NEW_REVIEW = {"user_id": "AE", "asin": "B1-red", "parent_asin": "B1", "rating": 4.0,
              "timestamp": 1588687728923}


def write(path, rows):
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def get(folder, name):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def test_old_reviews_and_metadata_in_python_notation(spark, tmp_path):
    write(tmp_path / "beauty" / "reviews_Beauty.json.gz", [OLD_REVIEW])
    write(tmp_path / "beauty" / "meta_Beauty.json.gz", [
        "{'asin': '0001', 'title': \"Bob's &amp; Lip\", 'brand': 'Acme', 'salesRank': {'Beauty': 3},"
        " 'categories': [['Beauty', 'Lips'], ['Beauty', 'Gifts']]}"])
    counts = read_input(InputSettings(path=str(tmp_path / "beauty")), tmp_path / "into", spark)
    assert (counts.format, counts.interactions, counts.items, counts.broken) == ("amazon", 1, 1, 0)
    assert get(tmp_path / "into", "interactions") == [
        {"user_id": "A2", "item_id": "0001", "rating": 5.0, "timestamp": 1300000000}]
    item, = get(tmp_path / "into", "items")
    assert item["title"] == "Bob's & Lip"
    assert dict(item["attributes"]) == {"category": "Beauty", "subcategory": "Lips", "brand": "Acme"}


def test_python_notation_with_none_true_unicode_and_escapes(spark, tmp_path):
    write(tmp_path / "old" / "reviews.json", [OLD_REVIEW])
    write(tmp_path / "old" / "meta.json.gz", [
        "{'asin': '1', 'title': None, 'imported': True}",
        r"{u'asin': u'2', u'title': u'caf\xe9 \u2603 \ud83d\ude00', 'brand': 'A\'s \d'}",
        '{"asin": "3", "title": "plain"}',
        "{'asin': '4', 'title': __import__('os').getcwd()}",
        "{'asin': '5', 'title': '" + "x" * (MAX_CHARACTERS + 1) + "'}",
        "{'asin': '6', 'title': " + "[" * 5000 + "]" * 5000 + "}"])
    settings = InputSettings(path=str(tmp_path / "old"), max_reject_share=0.9)
    assert read_input(settings, tmp_path / "into", spark).broken == 3
    titles = {row["item_id"]: row["title"] for row in get(tmp_path / "into", "items")}
    assert titles == {"1": None, "2": "café ☃ 😀", "3": "plain"}
    assert {(row["line"], row["reason"]) for row in get(tmp_path / "into", "rejects")} == {
        (4, "not a JSON object"), (5, "not a JSON object"), (6, "not a JSON object")}


def test_new_reviews_with_milliseconds_and_bad_lines(spark, tmp_path):
    bad = ['{"user_id": "AE", "parent_asin": ', json.dumps({**NEW_REVIEW, "user_id": ""}),
           json.dumps({**NEW_REVIEW, "rating": 11}), json.dumps({**NEW_REVIEW, "timestamp": None})]
    write(tmp_path / "new" / "All_Beauty.jsonl", [NEW_REVIEW, *bad])
    write(tmp_path / "new" / "meta_All_Beauty.jsonl", [
        {"parent_asin": "B1", "title": "Brush", "main_category": "All Beauty", "categories": [],
         "store": "Shop"},
        {"parent_asin": "B1", "title": "Brush again", "categories": None}])
    settings = InputSettings(path=str(tmp_path / "new"), max_reject_share=0.9)
    counts = read_input(settings, tmp_path / "into", spark)
    assert get(tmp_path / "into", "interactions") == [
        {"user_id": "AE", "item_id": "B1", "rating": 4.0, "timestamp": 1588687728}]
    item, = get(tmp_path / "into", "items")
    assert (item["title"], dict(item["attributes"])) == ("Brush", {"category": "All Beauty", "brand": "Shop"})
    assert sorted((row["line"], row["reason"]) for row in get(tmp_path / "into", "rejects")) == [
        (2, "item_id is a duplicate: the first row is kept"), (2, "not a JSON object"),
        (3, "user_id is missing"), (4, "rating is outside 0 to 5"), (5, "timestamp is missing")]
    assert (counts.broken, counts.duplicates) == (4, 1)


def test_text_in_brackets_is_a_category():
    """It ended the run with a traceback."""
    assert (_leaves("[Books, Arts"), _leaves('[["Books", "Arts"]]')) == (["[Books, Arts"], ["Books", "Arts"])


def test_metadata_without_reviews_is_refused(spark, tmp_path):
    write(tmp_path / "meta" / "meta.json", [{"asin": "1", "title": "x"}])
    with pytest.raises(DataError, match="no file of Amazon reviews"):
        read_input(InputSettings(path=str(tmp_path / "meta")), tmp_path / "into", spark)


def test_a_reviewer_inside_metadata_makes_it_no_review(spark, tmp_path):
    write(tmp_path / "new" / "a.jsonl", [NEW_REVIEW])
    item = {"parent_asin": "B1", "title": "Soap", "videos": [{"title": "t", "user_id": "AGI"}]}
    write(tmp_path / "new" / "meta.jsonl", ["", "{broken", item])
    read_input(InputSettings(path=str(tmp_path / "new"), max_reject_share=0.5), tmp_path / "into", spark)
    assert [row["title"] for row in get(tmp_path / "into", "items")] == ["Soap"]
    assert len(get(tmp_path / "into", "interactions")) == 1
