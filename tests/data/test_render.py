"""What a worker knows of the items while it writes users' prompts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.data import render
from dare_job.tables import ITEMS


@pytest.fixture
def shelf(tmp_path):
    rows = [{"item_id": f"i{n}", "title": f"Title {n}", "attributes": [("genre", str(n % 3))]}
            for n in range(99)]
    pq.write_table(pa.Table.from_pylist(rows, schema=ITEMS), tmp_path / "items.parquet")
    return lambda: render._Shelf(str(tmp_path / "items.parquet"))


def _finds_all(known):
    assert [known.entry(f"i{n}", 4.0).title for n in range(99)] == [f"Title {n}" for n in range(99)]
    assert known.entry("i98", None).attributes == {"genre": "2"}
    assert known.entry("i99", 4.0) is None and known.entry("", 4.0) is None


def test_an_item_is_found_by_its_id(shelf):
    _finds_all(shelf())


@pytest.mark.parametrize("values", [1, 3])
def test_ids_with_the_same_hash_are_told_apart(shelf, monkeypatch, values):
    monkeypatch.setattr(render, "hash", lambda text: len(text) * 7 % values, raising=False)
    _finds_all(shelf())


def test_a_shelf_without_items_finds_nothing(tmp_path):
    pq.write_table(ITEMS.empty_table(), tmp_path / "items.parquet")
    assert render._Shelf(str(tmp_path / "items.parquet")).entry("i0", None) is None
