"""Constrained beam search against ``generate`` with a callback: items and scores."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch

from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.drafts import TrieDrafter
from dare_job.decode.trie_search.item_weights import LeafScorer, PopularityWeights
from dare_job.decode.trie_search.search import TopK
from dare_job.decode.trie_search.trie import NONE, Trie, Vocabulary
from dare_job.errors import ConfigError, ModelError


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("k", [1, 4, 20])
def test_equal_to_generate(kind, k):
    used, ids = small.target(kind), small.trie()
    rows = small.queries(5)
    found = TopK(used, ids, small.FIRST, k).search(rows)
    for row, query in enumerate(rows):
        codes, scores = small.by_generate(used, ids, query, k)
        np.testing.assert_array_equal(ids.paths(found.leaves[row]), codes)
        np.testing.assert_allclose(found.scores[row], scores, atol=2e-5)
    assert (found.forwards == 4).all() and (found.accepted == 0).all()


def test_beams_of_every_step_are_the_results_for_shorter_ids():
    used, ids, rows = small.target(), small.trie(), small.queries(4)
    found = TopK(used, ids, small.FIRST, 30).search(rows)
    for length in range(1, 5):
        short = Trie.from_codes(ids.paths(np.arange(ids.leaves))[:, :length])
        k = min(30, short.leaves)
        due = TopK(used, short, small.FIRST[:length], k).search(rows).leaves
        assert (found.prefixes[:, length - 1, :k] - ids.starts[length] == due).all()
        assert (found.prefixes[:, length - 1, k:] == NONE).all()
        assert (ids.prefixes(found.prefixes[:, length - 1, :k], length) == short.paths(due)).all()


def test_recommending_all_ids_gives_each_once():
    ids = small.trie(30)
    found = TopK(small.target(), ids, small.FIRST, ids.leaves).search(small.queries(2))
    assert [sorted(row) for row in found.leaves.tolist()] == 2 * [list(range(ids.leaves))]
    assert (np.diff(found.scores) <= 0).all()


def test_banned_items_are_replaced():
    used, ids = small.target(), small.trie(30)
    plain = TopK(used, ids, small.FIRST, ids.leaves).search(small.queries(2))
    barred = [plain.leaves[0][:15].tolist(), []]
    rows = [Query(query.prompt, banned=row) for query, row in zip(small.queries(2), barred, strict=True)]
    found = TopK(used, ids, small.FIRST, ids.leaves - 15).search(rows)
    assert found.leaves[0].tolist() == plain.leaves[0][15:].tolist()
    same = TopK(used, ids, small.FIRST, ids.leaves - 15).search(small.queries(2))
    assert found.leaves[1].tolist() == same.leaves[1].tolist()


def test_a_user_with_fewer_ids_left_than_beams_gets_all_of_them():
    used, ids, k = small.target(), small.trie(30), 12
    plain = TopK(used, ids, small.FIRST, ids.leaves).search(small.queries(4))
    left = (k - 1, k, 1, 0)
    rows = [Query(query.prompt, banned=row[:ids.leaves - few].tolist())
            for query, row, few in zip(small.queries(4), plain.leaves, left, strict=True)]
    found = TopK(used, ids, small.FIRST, k).search(rows)
    for row, few in enumerate(left):
        last = plain.leaves[row, ids.leaves - few:]
        assert found.leaves[row].tolist() == [*last, *[NONE] * (k - few)]
        np.testing.assert_allclose(found.scores[row, :few], plain.scores[row, ids.leaves - few:], atol=2e-5)
        assert (found.scores[row, few:] == -np.inf).all()


def test_nonfinite_logits_affect_no_other_user():
    used, ids = small.target(), small.trie(30)
    sound = [Query([5, 6]), Query([7])]
    expected = TopK(used, ids, small.FIRST, 2).search(sound).leaves.tolist()
    with torch.no_grad():
        used.model.get_input_embeddings().weight[9] = torch.nan
    search = TopK(used, ids, small.FIRST, 2)
    with pytest.raises(ModelError, match="not finite"):
        search.search([*sound, Query([9, 5])])
    assert search.search(sound).leaves.tolist() == expected


def test_a_model_with_its_own_mask_is_drafted_within_its_columns():
    used, ids, rows = small.target(), small.trie(), small.queries(3)
    drafter = TrieDrafter(LeafScorer(Vocabulary(ids, small.FIRST), PopularityWeights(ids)), ids.length, 30)
    plain = TopK(used, ids, small.FIRST, 4).search(rows)
    free = TopK(used, ids, small.FIRST, 4, drafter).search(rows)
    used.traits = replace(used.traits, max_columns=30)
    found = TopK(used, ids, small.FIRST, 4, drafter).search(rows)
    assert found.leaves.tolist() == plain.leaves.tolist() and found.forwards.sum() > free.forwards.sum()
    used.traits = replace(used.traits, max_columns=18)
    with pytest.raises(ModelError, match="columns"):
        TopK(used, ids, small.FIRST, 4).search(rows)


def test_invalid_searches_are_rejected():
    used, ids = small.target(), small.trie(30)
    with pytest.raises(ConfigError, match="k = 99"):
        TopK(used, ids, small.FIRST, 99)
    with pytest.raises(ModelError, match="no tokens"):
        TopK(used, ids, small.FIRST, 2).search([Query([])])
    with pytest.raises(ModelError, match="do not fit"):
        TopK(small.target("gpt2"), ids, small.FIRST, 2).search([Query([5] * 126)])
