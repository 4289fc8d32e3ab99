"""The file of item ids: what is read, what is refused, and that writing changes nothing."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_job.errors import ConfigError, DataError
from dare_job.recommend.item_ids import ItemIds

PUBLISHED = {"7": ["<a_1>", "<b_0>"], "3": ["<a_0>", "<b_2>"], "9": ["<a_1>", "<b_0>"]}


def _write(path, table):
    path.write_text(json.dumps(table))
    return path


def test_published_form(tmp_path):
    ids = ItemIds.load(_write(tmp_path / "ids.json", PUBLISHED))
    assert ids.items == ("7", "3", "9") and ids.sizes == (2, 3) and ids.length == 2
    assert ids.codes.dtype == np.int32 and ids.codes.tolist() == [[1, 0], [0, 2], [1, 0]]
    assert ids.tokens(1) == ["<a_0>", "<b_2>"]
    assert ids.vocabulary() == ["<a_0>", "<a_1>", "<b_0>", "<b_1>", "<b_2>"]


def test_gzipped(tmp_path):
    (tmp_path / "ids.json.gz").write_bytes(gzip.compress(json.dumps(PUBLISHED).encode()))
    assert ItemIds.load(tmp_path / "ids.json.gz").items == ("7", "3", "9")


@given(st.integers(1, 4).flatmap(lambda length: st.lists(
    st.lists(st.integers(0, 30), min_size=length, max_size=length), min_size=1, max_size=12)))
def test_saved_ids_are_the_same(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("ids") / "ids.json"
    ids = ItemIds(tuple(f"item {n}" for n in range(len(rows), 0, -1)), np.array(rows, np.int32),
                  (31,) * len(rows[0]))
    ids.save(path)
    again = ItemIds.load(path)
    assert (again.items, again.sizes) == (ids.items, ids.sizes) and (again.codes == ids.codes).all()


@pytest.mark.parametrize("table, message", [
    ({}, "no items"),
    ([1], "a JSON object"),
    ({"x": []}, "item 'x' has []"),
    ({"x": "<a_1>"}, "item 'x' has '<a_1>'"),
    ({"x": ["<a_1>", "<b_1>"], "y": ["<a_1>"]}, "item 'y' has ['<a_1>']"),
    ({"x": ["<a_1>", "<a_1>"]}, "item 'x' has the unknown token '<a_1>' at position 2"),
    ({"x": ["<a_01>"]}, "item 'x' has the unknown token '<a_01>'"),
    ({"x": ["<a_-1>"]}, "unknown token"),
    ({"x": ["<a_99999999>"]}, "unknown token"),
    ({"x": [3]}, "unknown token 3"),
    ({"format": 2, "sizes": [3], "items": {"x": ["<a_1>"]}}, "format 2"),
    ({"format": 1, "sizes": [1], "items": {"x": ["<a_1>"]}}, "item 'x' has the unknown token <a_1>"),
    ({"format": 1, "sizes": [2, 2], "items": {"x": ["<a_1>"]}}, "do not fit"),
])
def test_refused(tmp_path, table, message):
    path = _write(tmp_path / "ids.json", table)
    with pytest.raises(DataError) as error:
        ItemIds.load(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_an_item_that_is_there_twice(tmp_path):
    (tmp_path / "ids.json").write_text('{"x": ["<a_1>"], "x": ["<a_2>"]}')
    with pytest.raises(DataError, match="key 'x' occurs twice"):
        ItemIds.load(tmp_path / "ids.json")


def test_no_file(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        ItemIds.load(tmp_path / "ids.json")
