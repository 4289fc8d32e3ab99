"""Leaves mapped to items: how many items are left for a user, and that each leaf that is left has an item."""

import numpy as np
import pytest

from dare_job.decode.trie_search.trie import NONE
from dare_job.recommend.catalogue import DUPLICATES, INTERACTED, Catalogue
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender

IDS = ItemIds(tuple("abcdef"), np.array([[0, 0], [0, 1], [0, 1], [0, 1], [1, 0], [1, 0]], np.int32), (2, 2))
CATALOGUE = Catalogue.build(IDS, np.array([0, 1, 3, 2, 0, 0.0]))


@pytest.mark.parametrize(("exclude", "rows", "left", "items"), [
    ([], (0, 2), 6, "acdbef"), ([DUPLICATES], (0, 2), 3, "ace"), ([INTERACTED], (), 6, "acdbef"),
    ([INTERACTED], (0, 2, 2), 4, "dbef"), ([INTERACTED], (1, 2, 3), 3, "aef"),
    ([INTERACTED], range(6), 0, ""),
    ([INTERACTED, DUPLICATES], (1, 2), 3, "ade"), ([INTERACTED, DUPLICATES], (1, 2, 3, 4), 2, "af")])
def test_as_many_items_are_recommended_as_are_left(tmp_path, exclude, rows, left, items):
    recommender = Recommender(tmp_path, IDS, (3, 5), 8, begin=(0,))
    banned = CATALOGUE.query(recommender, rows, exclude).banned
    leaves = [leaf for leaf in range(3) if leaf not in banned]
    padded = leaves + [NONE] * (3 - len(leaves))
    recommended = CATALOGUE.top_items(padded, [-1.0 - leaf for leaf in padded], rows, exclude, 6)
    assert CATALOGUE.max_items(exclude, rows) == left == len(items) and "".join(recommended.items) == items
    assert CATALOGUE.top_items(padded, [0.0] * 3, rows, exclude, 2).items == recommended.items[:2]


@pytest.mark.parametrize(("exclude", "others", "items"), [
    ([], (2,), "cdbaef"), ([INTERACTED], (2,), "dbaef"), ([DUPLICATES], (2,), "cae"),
    ([INTERACTED, DUPLICATES], (2, 0), "de"), ([INTERACTED], (), "cdbaef")])
def test_a_user_without_history_gets_new_popular_items(exclude, others, items):
    assert "".join(CATALOGUE.by_popularity(exclude, 6, others).items) == items
    assert CATALOGUE.max_items(exclude, others) == len(items)


def test_other_interactions_are_excluded_but_not_in_the_prompt(tmp_path):
    recommender = Recommender(tmp_path, IDS, (3, 5), 8, begin=(0,))
    liked, both = (CATALOGUE.query(recommender, [0], [INTERACTED], other_rows=rows) for rows in ((), (4, 5)))
    assert both.prompt == liked.prompt and both.history == liked.history
    assert (liked.banned, both.banned) == ([0], [0, 2])
    assert CATALOGUE.query(recommender, [0], [], other_rows=(4, 5)).banned == []
