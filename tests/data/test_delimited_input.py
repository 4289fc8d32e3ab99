"""Text with separators as tools and people write it: headers, comments, quotes and line ends."""

import pytest
from input_rows import EVENT, put, read, text


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
