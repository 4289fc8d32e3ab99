"""What a worker knows of the items while it writes users' prompts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.data import item_vectors, render
from dare_job.prompts.sets import PromptSet
from dare_job.schemas import ATTRIBUTES, ITEMS


@pytest.fixture
def shelf(tmp_path):
    rows = [{"item_id": f"i{n}", "title": f"Title {n}", "attributes": [("genre", str(n % 3))]}
            for n in range(99)]
    pq.write_table(pa.Table.from_pylist(rows, schema=ITEMS), tmp_path / "items.parquet")
    return lambda: render._ItemLookup(str(tmp_path / "items.parquet"))


EXPECTED = {"": None, "i99": None, **{f"i{n}": (f"Title {n}", {"genre": str(n % 3)}) for n in range(99)}}


def _entries(known) -> dict:
    """All entries, the later ones asked for again."""
    known.entries(EXPECTED)
    later = known.entries([*EXPECTED][40:])
    return {**known.entries(EXPECTED), **later}


def test_an_item_is_found_by_its_id(shelf):
    assert _entries(shelf()) == EXPECTED


@pytest.mark.parametrize("values", [1, 3])
def test_ids_with_the_same_hash_are_told_apart(shelf, monkeypatch, values):
    monkeypatch.setattr(item_vectors, "hash", lambda text: len(text) * 7 % values, raising=False)
    assert _entries(shelf()) == EXPECTED


def test_a_shelf_without_items_finds_nothing(tmp_path):
    pq.write_table(ITEMS.empty_table(), tmp_path / "items.parquet")
    lookup = render._ItemLookup(str(tmp_path / "items.parquet"))
    assert lookup.entries(["i0", "i1"]) == {"i0": None, "i1": None}


def test_items_are_forgotten_in_time(shelf, monkeypatch):
    monkeypatch.setattr(render, "_MAX_CACHED", 20)
    known = shelf()
    assert _entries(known) == EXPECTED
    assert len(known.entries(["i5"])) == 1, "more is kept than was asked for"


def test_what_a_template_asks_for_and_one_row_lacks_costs_that_row_alone():
    own = PromptSet("own", 5, {"item": "{{ title }} of {{ '{year}'.format(**attributes) }}"})
    batch = pa.record_batch({
        "entity_id": ["i0", "i1", "i2"], "interactions": pa.array([1, 2, 3], pa.int32()),
        "title": ["Heat", "Ronin", "Alien"],
        "attributes": pa.array([[("year", "1995")], [("genre", "crime")], [("year", "1979")]], ATTRIBUTES)})
    (written,) = render.render_items(own)(iter([batch]))
    assert written["prompt"].to_pylist() == ["Heat of 1995", None, "Alien of 1979"]
    assert written["error"].to_pylist() == [
        None, "prompts: set 'own', item, line 1 of the template: KeyError: 'year'", None]


def test_impressions_stand_in_no_prompt_and_a_new_number_changes_none():
    own = PromptSet("own", 5, {"item": "{{ title }}{% for name in attributes %}, {{ name }}{% endfor %}"})
    batch = pa.record_batch({
        "entity_id": ["i0"], "interactions": pa.array([1], pa.int32()), "title": ["Heat"],
        "attributes": pa.array([[("traffic", "1000"), ("year", "1995")]], ATTRIBUTES)})
    (written,) = render.render_items(own)(iter([batch]))
    assert written["prompt"].to_pylist() == ["Heat, year"]
