"""Interactions of clicks and of histories: what has a rating, and what needs none."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.errors import DataError
from dare_job.evaluate.ctr import source
from dare_job.evaluate.refresh import real
from dare_job.evaluate.refresh.learn import rankings
from dare_job.refresh.learned import Coefficients
from dare_job.schemas import INTERACTIONS, ITEMS, USERS

_DAY_S = 86_400


@pytest.fixture
def unrated(tmp_path):
    """Contract tables of five users who are active on two days, without ratings."""
    rows = [{"user_id": f"u{user}", "item_id": f"i{(user + place) % 4}", "rating": None,
             "timestamp": place // (user + 1) * _DAY_S + place} for user in range(5) for place in range(12)]
    items = [{"item_id": f"i{item}", "title": f"Film {item}", "attributes": [("genre", f"g{item % 2}")]}
             for item in range(4)]
    for name, table, schema in (("interactions", rows, INTERACTIONS), ("users", [], USERS),
                                ("items", items, ITEMS)):
        pq.write_table(pa.Table.from_pylist(table, schema), tmp_path / f"{name}.parquet")
    return tmp_path


def test_a_click_needs_a_rating_only_where_it_depends_on_one(unrated):
    with pytest.raises(DataError, match="60 of 60 interactions have no rating, but a click is a rating"):
        source._contract(unrated, 4.0)
    found = source._contract(unrated, None)
    assert len(found.interactions) == 60 and (found.interactions["label"] == 1).all()


def test_changes_of_histories_without_ratings_are_ranked(unrated):
    found = source._contract(unrated, None)
    moved = real.changes(found.interactions, found.items, "embedded", 0)
    days = found.interactions.assign(day=found.interactions["timestamp"] // _DAY_S)
    active = days.groupby("user_id")["day"].nunique()
    assert len(moved.user) == (active - 1).clip(upper=10).sum() > 5
    assert {"random", "value"} <= rankings(moved, Coefficients(1, 0, 0, 0, 1)).keys()
