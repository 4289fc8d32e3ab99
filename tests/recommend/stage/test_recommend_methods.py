"""Each method of recommending that a run can choose, from its settings to items, with a worker's search."""

import itertools

import numpy as np
import pytest
import tiny_recommender

from dare_job.config.recommend import RecommendSettings
from dare_job.recommend.catalogue import Catalogue
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


def items(folders, drafter: str | None, seed: int = 0, **settings) -> dict[str, list[str]]:
    """Recommended items by user."""
    recommender = Recommender.open(folders[0])
    small = open_drafter(recommender, folders[1]) if drafter == "folder" else None
    settings = RecommendSettings(model="m", k=4, drafter=drafter, **settings)
    catalogue = Catalogue.build(recommender.ids, np.ones(len(recommender.ids.items), np.int64))
    histories = [catalogue.trie.rows[catalogue.rows(history)].tolist()
                 for _, history, _ in USERS if len(history) > 1]
    search = make_search(settings, recommender, catalogue.trie, lambda: histories, small, "cpu", seed)
    found: dict[str, list[str]] = {}
    for row in BatchRecommender(search, catalogue, recommender, small, settings.exclude, settings.k,
                                settings.batch_size).rows(USERS):
        found.setdefault(row["user_id"], []).append(row["item_id"])
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
