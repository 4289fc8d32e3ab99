"""Each method of recommending that a run can choose, from its settings to items, with a worker's search."""

import itertools
from functools import cache

import numpy as np
import pytest
import tiny_recommender

from dare_job.config.decoding import RecommendSettings
from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.search import TopK
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.rows import BatchRecommender
from dare_job.recommend.task import make_search, open_drafter
from dare_job.recommend.vocabulary import Recommender

USERS = [(f"u{n}", [f"i{(7 * n + step) % 40}" for step in range(1 + n % 3)], []) for n in range(4)]
DRAFTERS = ("trie", "popularity", "transitions", "folder")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    ids = tiny_recommender.item_ids()
    return [tiny_recommender.write(tmp_path_factory.mktemp(name), seed, width, ids)
            for seed, (name, width) in enumerate((("recommender", 32), ("drafter", 16)))]


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "load", cache(Target.load))
        yield


def items(folders, drafter: str | None, seed: int = 0, users=USERS, counts=None,
          **settings) -> dict[str, list[str]]:
    """Recommended items, or the error, by user. ``counts``: interactions by item."""
    recommender = Recommender.open(folders[0])
    small = open_drafter(recommender, folders[1]) if drafter == "folder" else None
    settings = RecommendSettings(**{"model": "m", "k": 4, "drafter": drafter, **settings})
    catalogue = Catalogue.build(recommender.ids, np.ones(40, np.int64) if counts is None else counts)
    histories = [catalogue.trie.rows[catalogue.rows(history)].tolist()
                 for _, history, _ in users if len(history) > 1]
    search = make_search(settings, recommender, catalogue.trie, lambda: histories, small, "cpu", seed)
    found: dict[str, list[str]] = {}
    for row in BatchRecommender(search, catalogue, recommender, small, settings.exclude, settings.k,
                                settings.batch_size).rows(users, {}):
        found.setdefault(row["user_id"], []).append(row["error"] or row["item_id"])
    return found


@pytest.mark.parametrize("scores", ["raw", "renormalised"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_beam_search_finds_the_same_with_any_drafts(folders, drafter, scores):
    expected = items(folders, None, scores=scores)
    assert {len(found) for found in expected.values()} == {4}
    for depth, whole in itertools.product(("auto", "all", 2), (192, 0)):
        if (drafter, whole) != ("trie", 0):
            assert items(folders, drafter, scores=scores, draft_depth=depth, draft_whole=whole) == expected


@pytest.mark.parametrize("verify", ["exact", "relaxed"])
@pytest.mark.parametrize("drafter", [*DRAFTERS, None])
def test_sampled_lists_depend_on_the_seed(folders, drafter, verify):
    for whole in (192, 1):
        asked = {"temperature": 1.0, "verify": verify, "draft_depth": "all", "draft_whole": whole}
        found = items(folders, drafter, **asked)
        assert {len(set(one)) for one in found.values()} == {4}
        assert found == items(folders, drafter, **asked) != items(folders, drafter, seed=1, **asked)
    one, other = (items(folders, drafter, batch_size=size, **asked) for size in (1, 3))
    assert one == other == found  # whatever the batches


def test_items_that_share_an_id_come_in_order_of_popularity_or_alone(folders):
    counts = np.ones(40)
    counts[39] = 9  # i38 has the same id
    users = [*USERS, ("u_new", [], [])]
    every = items(folders, None, users=users, counts=counts, k=40, exclude=[])["u1"]
    assert sorted(every) == sorted(tiny_recommender.item_ids().items)
    assert every.index("i39") + 1 == every.index("i38")
    distinct = items(folders, None, users=users, counts=counts, k=39, exclude=["duplicates"])
    assert all(len(found) == 39 and "i38" not in found for found in distinct.values())


@pytest.mark.parametrize("drafter", [None, "transitions"])
def test_k_items_as_long_as_enough_are_left(tmp_path, drafter):
    """40 items share 10 ids, fewer than the 12 recommended items."""
    ids = tiny_recommender.item_ids()
    codes = np.tile(ids.codes[:10], (4, 1))  # i0, i10, i20 and i30 have the first one
    place = tiny_recommender.write(tmp_path, ids=ItemIds(ids.items, codes, tiny_recommender.SIZES))
    taken = {"u_whole": [0, 10, 20, 30], "u_12": [*range(28)], "u_11": [*range(29)], "u_all": [*range(40)]}
    users = [*USERS, *((user, [f"i{item}" for item in rows], []) for user, rows in taken.items())]
    counts = np.bincount([int(item[1:]) for _, rows, _ in users for item in rows])
    found = items([place], drafter, users=users, counts=counts, k=12)
    (few,), (none,) = found.pop("u_11"), found.pop("u_all")
    assert "fewer than 12 items are left, 11," in few and "items are left, 0," in none
    assert len(found) == len(USERS) + 2
    assert {len(set(rows)) for rows in found.values()} == {12}
    assert set(found["u_12"]) == {f"i{item}" for item in range(28, 40)}
    recommender = Recommender.open(place)
    catalogue = Catalogue.build(recommender.ids, counts.astype(float))
    search = TopK(Target.load(place), catalogue.trie, recommender.first_code_token, 10)
    for user in ("u_whole", "u_12"):
        leaves = search.search([catalogue.query(recommender, taken[user], [])]).leaves[0]
        due = [row for leaf in leaves for row in catalogue.owners[leaf] if row not in taken[user]]
        assert found[user] == [f"i{row}" for row in due[:12]]
