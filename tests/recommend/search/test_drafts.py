"""Recommendations with drafts equal those of beam search, whatever drafts them."""

import numpy as np
import pytest
import small
import torch
from transformers import GPTNeoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.drafts import ModelScorer, TrieDrafter
from dare_job.decode.trie_search.item_weights import (
    LeafScorer,
    PopularityWeights,
    TransitionWeights,
)
from dare_job.decode.trie_search.node_scores import RAW, RENORMALISED
from dare_job.decode.trie_search.search import TopK
from dare_job.decode.trie_search.trie import NONE, ROOT, Trie, Vocabulary
from dare_job.errors import ConfigError


def scorer(name: str, ids: Trie):
    view = Vocabulary(ids, small.FIRST)
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, ids.leaves, 6).tolist() for _ in range(50)]
    return {"same": lambda: ModelScorer(small.target(), view),
            "other": lambda: ModelScorer(small.target("qwen2", 9, width=16, layers=1), view),
            "popularity": lambda: LeafScorer(view, PopularityWeights(ids, sequences)),
            "transitions": lambda: LeafScorer(view, TransitionWeights(ids, sequences))}[name]()


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("scores", [RAW, RENORMALISED])
@pytest.mark.parametrize("name", ["same", "other", "popularity", "transitions"])
def test_drafts_change_no_recommendation(name, scores):
    ids, rows = small.trie(), small.queries(6)
    rows = [Query(query.prompt, history=[at, at + 3], banned=[at]) for at, query in enumerate(rows)]
    for k, width, depth, whole in ((1, 2, None, 0), (5, 12, None, 0), (5, 9, 2, 30), (20, 40, 1, 0),
                                   (5, 0, None, 30)):
        plain = TopK(small.target(), ids, small.FIRST, k, scores=scores).search(rows)
        drafter = TrieDrafter(scorer(name, ids), ids.length, width, depth, whole)
        found = TopK(small.target(), ids, small.FIRST, k, drafter, scores).search(rows)
        np.testing.assert_array_equal(found.leaves, plain.leaves)
        np.testing.assert_array_equal(found.prefixes, plain.prefixes)
        np.testing.assert_allclose(found.scores, plain.scores, atol=2e-5)
        assert (found.forwards <= plain.forwards).all() and (found.queries >= plain.queries).all()


@pytest.mark.parametrize("scores", [RAW, RENORMALISED])
@pytest.mark.parametrize("name", ["other", "transitions"])
def test_drafts_change_no_recommendation_where_few_ids_are_left(name, scores):
    ids, k, rng = small.trie(30), 8, np.random.default_rng(2)
    left = (k - 1, 3, 1, 0, k, ids.leaves)
    rows = [Query(query.prompt, banned=rng.permutation(ids.leaves)[few:].tolist())
            for query, few in zip(small.queries(6), left, strict=True)]
    plain = TopK(small.target(), ids, small.FIRST, k, scores=scores).search(rows)
    assert (plain.leaves != NONE).sum(1).tolist() == [min(few, k) for few in left]
    for width, depth, whole in ((12, None, 0), (3, 1, 20), (0, None, 30)):
        drafter = TrieDrafter(scorer(name, ids), ids.length, width, depth, whole)
        found = TopK(small.target(), ids, small.FIRST, k, drafter, scores).search(rows)
        np.testing.assert_array_equal(found.leaves, plain.leaves)
        np.testing.assert_allclose(found.scores, plain.scores, atol=2e-5)


def test_the_target_as_its_own_drafter_needs_one_forward_pass():
    ids, rows = small.trie(), small.queries(6)
    drafter = TrieDrafter(scorer("same", ids), ids.length, 60)
    found = TopK(small.target(), ids, small.FIRST, 5, drafter).search(rows)
    assert (found.forwards == 1).all() and (found.accepted == 3).all()


def test_all_nodes_drafted_are_all_accepted():
    ids = small.trie(30)
    drafter = TrieDrafter(scorer("popularity", ids), ids.length, ids.leaves)
    found = TopK(small.target(), ids, small.FIRST, 30 if ids.leaves >= 30 else ids.leaves, drafter).search(
        small.queries(3))
    assert (found.forwards == 1).all()


def test_full_levels_are_always_accepted():
    ids = small.trie(400, sizes=(5, 30, 3, 2))
    drafter = TrieDrafter(
        LeafScorer(Vocabulary(ids, small.FIRST), PopularityWeights(ids)), ids.length, 0, max_full_level=20
    )
    found = TopK(small.target(), ids, [3, 8, 38, 41], 3, drafter).search(small.queries(4))
    assert (found.forwards == 2).all()  # prompts with all first codes, then the second codes with all third


def test_forced_tokens_need_no_read_with_renormalised_scores():
    ids = Trie.from_codes(
        np.array([[0, 1, 2, 3], [1, 1, 1, 1], [2, 0, 0, 0]])
    )  # forced after the first code
    rows, used = small.queries(3), small.target()
    found = TopK(used, ids, small.FIRST, 2, scores=RENORMALISED).search(rows)
    assert (found.forwards == 1).all()
    raw = TopK(used, ids, small.FIRST, 2).search(rows)
    assert (raw.forwards == 4).all() and (raw.scores < found.scores).all()
    ids = Trie.from_codes(
        np.array([[0, 1, 2], [0, 1, 3], [1, 0, 0], [2, 0, 0]])
    )  # one of three has two children
    found = TopK(used, ids, small.FIRST[:3], 3, scores=RENORMALISED).search(rows)
    assert (found.reads == [[len(row.prompt) for row in rows], [2, 2, 2]]).all()  # its two codes alone


@pytest.mark.parametrize("name", ["other", "popularity", "transitions"])
def test_a_scorer_gives_probabilities_of_all_children(name):
    ids = small.trie(60)
    used = scorer(name, ids)
    used.begin([Query([5, 6], history=[1, 2, 3]), Query([7])])
    nodes = np.array([[ROOT, 1, 2], [3, NONE, ids.first_leaf - 1]])
    _, there, logs = used.children(np.arange(2), nodes)
    sums = torch.where(there, logs.exp(), 0).sum(-1)
    np.testing.assert_allclose(sums.numpy(), [[1, 1, 1], [1, 0, 1]], atol=1e-5)


def test_transition_weights():
    ids = small.trie(30)
    weights = TransitionWeights(ids, [[4, 7]] * 5 + [[1, 2]]).weigh([[4], [], [1, 4]])
    assert weights[0].argmax() == 7 and weights[2].argmax() == 7
    np.testing.assert_allclose(weights.sum(1), 1)


def test_a_draft_without_nodes_is_rejected():
    ids = small.trie(30)
    with pytest.raises(ConfigError, match="at least 1"):
        TrieDrafter(scorer("popularity", ids), ids.length, 0)


@pytest.mark.parametrize("scores", [RAW, RENORMALISED])
def test_forced_first_codes(scores):
    """All ids share their first code: a drafter, or renormalised scores, need no forward pass for it."""
    ids = Trie.from_codes(np.array([[0, 0, 0], [0, 1, 2], [0, 1, 3], [0, 1, 4]]))
    first, rows = small.FIRST[:3], [Query([5, 7]), Query([9])]
    plain = TopK(small.target(), ids, first, 2, scores=scores).search(rows)
    drafter = TrieDrafter(ModelScorer(small.target("qwen2", 9), Vocabulary(ids, first)), 3, 3)
    found = TopK(small.target(), ids, first, 2, drafter, scores).search(rows)
    np.testing.assert_array_equal(found.leaves, plain.leaves)
    np.testing.assert_allclose(found.scores, plain.scores, atol=2e-5)
    assert (plain.forwards == (3 if scores == RAW else 2)).all()


def test_drafts_leave_enough_cache_columns():
    """GPT-Neo's own mask has a fixed size: a rejected draft must leave the columns that later levels need."""
    torch.manual_seed(0)
    own = Target(AutoModelForCausalLM.from_config(GPTNeoConfig(
        vocab_size=small.VOCABULARY, hidden_size=32, num_layers=2, num_heads=4,
        attention_types=[[["global"], 2]], max_position_embeddings=64)).eval(), check=False)
    ids, rng = small.trie(), np.random.default_rng(0)
    for length in (5, 20, 25, 30, 33):
        rows = [Query(rng.integers(3, small.VOCABULARY, length).tolist())]
        plain = TopK(own, ids, small.FIRST, 10).search(rows)
        for width, whole, depth in ((0, 7, None), (0, 63, 1), (10, 0, None), (15, 0, 1), (20, 0, None)):
            alike = LeafScorer(Vocabulary(ids, small.FIRST), PopularityWeights(ids))
            drafter = TrieDrafter(alike, 4, width, depth, whole)
            found = TopK(own, ids, small.FIRST, 10, drafter).search(rows)
            np.testing.assert_array_equal(found.leaves, plain.leaves)
