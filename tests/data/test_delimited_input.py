"""Text with separators as tools and people write it: headers, comments, quotes and line ends."""

import pytest
from input_rows import EVENT, put, read, text

from dare_job.data.input.checks import hint
from dare_job.errors import DataError


def items(tmp_path, *lines, name="items.csv", **settings):
    """Rows of items that are read, and (line, problem) of the others."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, name, *lines)
    found = read(folder, tmp_path, tables={"items": settings})
    return found["items"], found["bad items"]


def test_a_carriage_return_in_a_row_with_quotes(tmp_path):
    """It ended the run with a traceback."""
    found, bad = items(tmp_path, "item_id,title,note", 'a,"Heat, The",two\rlines', 'b,"B"\r', "c,C,n",
                       attributes=["note"])
    assert [(item["title"], item["attributes"]) for item in found] == [
        ("Heat, The", {"note": "two lines"}), ("C", {"note": "n"})]
    assert bad == [(3, "expected 3 fields, found 2")]


@pytest.mark.parametrize("again", ["\ufeffitem_id,title", "Item_ID,TITLE", '\ufeff"item_id","title"',
                                   '"ITEM_ID", "Title"'])
def test_a_header_that_is_repeated_in_another_way_is_no_row(tmp_path, again):
    """Files with byte order marks, joined by cat, gave an item item_id."""
    for first in ("a,A", 'a,"A"'):
        found, bad = items(tmp_path, "\ufeffitem_id,title", first, again, "b,B")
        assert [item["title"] for item in found] == ["A", "B"] and not bad


def test_a_header_without_the_name_of_its_first_column_is_skipped(tmp_path):
    """R writes row names but no name of theirs."""
    settings = {"header": ["row", "item_id", "title"]}
    found, bad = items(tmp_path, '"item_id","title"', '"1","a","A"', '"2","b","B"', **settings)
    assert [item["title"] for item in found] == ["A", "B"] and not bad


@pytest.mark.parametrize(("name", "lines"), [
    ("items.csv", ["# Exported on Monday, 5 January 2026", "item_id,title,genre", "a,A,x"]),
    ("items.tsv", ["# Exported on Monday, 5 January", "", "# 2 rows", "item_id\ttitle\tgenre", "a\tA\tx"])])
def test_a_comment_with_a_comma_is_no_header(tmp_path, name, lines):
    found, bad = items(tmp_path, *lines, name=name)
    assert [item["title"] for item in found] == ["A"] and not bad


@pytest.mark.parametrize("first", ["#id\ttitle", "# id\ttitle"])
def test_a_header_may_begin_as_a_comment_does(tmp_path, first):
    found, _ = items(tmp_path, first, "a\tA", "b\tB, C", name="items.tsv", columns={"item_id": first[:-6]})
    assert [item["title"] for item in found] == ["A", "B, C"]


def test_the_separator_is_the_most_frequent_one_of_the_header(tmp_path):
    """A comma in the name of a price made all of a file one column."""
    found, bad = items(tmp_path, "item_id;price, EUR;title", "a;4,50;A", "b;1,99;B")
    assert [item["title"] for item in found] == ["A", "B"] and not bad
    with pytest.raises(DataError, match=r"no column item_id.*If ';' separates fields: "
                       r"input.tables.items.separator=';'"):
        items(tmp_path, "item_id;price, EUR;title", "a;4,50;A", format="csv")


def test_quotes_around_a_part_of_a_field_are_text(tmp_path):
    """Quotes were taken from the titles of songs."""
    found, bad = items(tmp_path, "item_id\ttitle", 'a\t"Heroes" (Bowie)', '"b"\t"Weird Al" Yankovic: "UHF"',
                       '"c" \t"C" ', 'd\t"open, D', name="items.tsv")
    assert {item["item_id"]: item["title"] for item in found} == {
        "a": '"Heroes" (Bowie)', "b": '"Weird Al" Yankovic: "UHF"', "c": "C", "d": '"open, D'} and not bad


def test_rows_of_one_more_field_than_the_header_name_its_setting(tmp_path):
    _, bad = items(tmp_path, '"item_id","title"', '"1","a","A"')
    assert bad == [(2, "expected 2 fields, found 3")]
    assert "if the header lacks a name, as that of R's row names: input.tables.items.header=[" in hint(
        "items", bad[0][1])
