"""Sampled recommendations: their distribution by enumeration through the search itself, and independence of
other users.
"""

import enumerated
import numpy as np
import pytest
import small
import torch

from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.drafts import ModelScorer
from dare_job.decode.trie_search.item_weights import LeafScorer, PopularityWeights
from dare_job.decode.trie_search.sampled import VERIFICATIONS, SampledTopK, SampledTrieDrafter
from dare_job.decode.trie_search.search import TopK
from dare_job.decode.trie_search.trie import NONE, Trie, Vocabulary
from dare_job.errors import ConfigError

TWO = Trie.from_codes(np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0], [2, 0, 0]]))  # last code forced
FEW = Trie.from_codes(np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]]))
FIRST = [3, 8, 12]


class Table:
    """Log-probabilities of all nodes' children, with the interface of ``NodeScores``."""

    def __init__(self, ids: Trie, seed: int):
        self.view, self.max_positions = Vocabulary(ids, [0] * ids.length), None
        self.logs = torch.full((len(ids), ids.width), -torch.inf)
        randomness = torch.Generator().manual_seed(seed)
        for node, count in enumerate(ids.counts):
            self.logs[node, :count] = (2 * torch.randn(count, generator=randomness)).log_softmax(-1)

    def begin(self, prompts):
        self.lengths, self.counts, self.known = np.ones(1, np.int64), np.zeros(1, np.int64), set()
        self.reads = []

    def has(self, rows, nodes):
        return np.array([[node < 0 or node in self.known for node in nodes[0]]]).reshape(len(rows), -1)

    def unread(self, rows, nodes):
        return np.array([[node for node in set(nodes[0].tolist()) if node >= 0 and node not in self.known]])

    def capacity(self):
        return None

    def read(self, rows, nodes):
        self.known.update(nodes[0].tolist())
        self.reads.append(np.ones(1, np.int64))

    def children(self, rows, nodes):
        nodes = torch.from_numpy(nodes)
        children, there = self.view.children(nodes)
        logs = self.logs[nodes.clamp_min(0)][..., :children.shape[-1]]
        return children, there, logs.masked_fill(~there, -torch.inf)


def recommended(
    p: Table, q: Table | None, verification: str, width: int, whole: int = 0, depth: int = 2
) -> dict:
    q_scorer = q and type("Scorer", (), {"begin": lambda self, queries: None, "children": q.children,
                                           "reads": []})()
    drafter = q and SampledTrieDrafter(q_scorer, 3, width, depth, whole)
    search = SampledTopK(small.target(), p.view.trie, FIRST, 2, 1.0, drafter, verification)
    search.node_scores = p

    def run(randomness):
        search.use_randomness = lambda _: SampledTopK.use_randomness(search, randomness)
        return tuple(sorted(search.search([Query([5])]).leaves[0].tolist()))

    return enumerated.distribution(run)


@pytest.mark.slow
@pytest.mark.parametrize(("ids", "width", "whole", "depth"), [
    (TWO, 1, 0, 2), (FEW, 2, 0, 2), (FEW, 1, 3, 2), (FEW, 2, 0, 1)])
def test_exact_verification_keeps_the_distribution(ids, width, whole, depth):
    p, q = Table(ids, 0), Table(ids, 1)
    plain = recommended(p, None, "exact", 0)
    found = recommended(p, q, "exact", width, whole, depth)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    assert enumerated.distance(found, plain) < 1e-12


@pytest.mark.slow
def test_published_verification_changes_the_distribution():
    p, q = Table(TWO, 0), Table(TWO, 1)
    plain = recommended(p, None, "exact", 0)
    assert enumerated.distance(recommended(p, q, "relaxed", 2, depth=1), plain) > 0.05


def test_published_verification_drafts_again_after_too_few_accepted(monkeypatch):
    """Although everything was read before, so that no forward pass is needed."""
    p, q, told = Table(FEW, 0), Table(FEW, 1), []
    monkeypatch.setattr(p, "read", lambda *_: (p.known.update(range(len(FEW))), p.reads.append(np.ones(1))))
    drafts, draft = [], SampledTrieDrafter.draft
    monkeypatch.setattr(SampledTrieDrafter, "draft", lambda *asked: drafts.append(1) or draft(*asked))
    relaxed = VERIFICATIONS["relaxed"]

    def watched(*asked):
        places, through = relaxed(*asked)
        told.append(bool(through[0]))
        if len(told) == 3:
            ends.add(tuple(told))
            assert len(drafts) == 1 + told.count(False)
            told.clear()
            drafts.clear()
        return places, through

    ends = set()
    monkeypatch.setitem(VERIFICATIONS, "relaxed", watched)
    recommended(p, q, "relaxed", 2, depth=1)
    assert (True, True, True) in ends and (False, True, True) in ends


def test_full_levels_keep_the_distribution_under_published_verification():
    p, q = Table(FEW, 0), Table(FEW, 1)
    plain = recommended(p, None, "exact", 0)
    assert enumerated.distance(recommended(p, q, "relaxed", 0, whole=8, depth=1), plain) < 1e-12


def scorer(ids: Trie, name: str):
    view = Vocabulary(ids, small.FIRST)
    if name == "model":
        return ModelScorer(small.target("qwen2", 9, width=16, layers=1), view)
    return LeafScorer(view, PopularityWeights(ids, [[1, 2, 3], [2]]))


@pytest.mark.parametrize("verification", ["exact", "relaxed"])
@pytest.mark.parametrize("name", ["model", "popularity"])
def test_recommendations_are_complete_and_independent_of_other_users(name, verification):
    ids = small.trie()
    rows = [Query(query.prompt, banned=[at], name=f"u{at}") for at, query in enumerate(small.queries(6))]

    def searched(some):
        drafter = SampledTrieDrafter(scorer(ids, name), ids.length, 8)
        search = SampledTopK(small.target(), ids, small.FIRST, 5, 0.8, drafter, verification, seed=3)
        return search.search(some)

    found = searched(rows)
    assert all(len(set(row)) == 5 and at not in row for at, row in enumerate(found.leaves.tolist()))
    for at in (0, 4):
        assert searched(rows[at:at + 1]).leaves[0].tolist() == found.leaves[at].tolist()


@pytest.mark.parametrize("verification", ["exact", "relaxed"])
def test_all_ids_are_sampled_where_few_are_left(verification):
    ids, randomness = small.trie(30), np.random.default_rng(2)
    left = [randomness.permutation(ids.leaves)[:few].tolist() for few in (4, 1, 0, 5)]
    rows = [Query(query.prompt, banned=sorted({*range(ids.leaves)} - {*some}), name=at)
            for at, (query, some) in enumerate(zip(small.queries(4), left, strict=True))]
    for drafter in (None, SampledTrieDrafter(scorer(ids, "popularity"), ids.length, 6, max_full_level=5)):
        search = SampledTopK(small.target(), ids, small.FIRST, 5, 0.8, drafter, verification, seed=3)
        for some, found in zip(left, search.search(rows).leaves.tolist(), strict=True):
            assert sorted(found) == sorted([NONE] * (5 - len(some)) + some)


def test_a_low_temperature_equals_beam_search():
    ids, rows = small.trie(), small.queries(4)
    cold = SampledTopK(small.target(), ids, small.FIRST, 3, 1e-3).search(rows)
    best = TopK(small.target(), ids, small.FIRST, 3).search(rows)
    np.testing.assert_array_equal(cold.leaves, best.leaves)


def test_invalid_settings_are_rejected():
    ids = small.trie()
    with pytest.raises(ConfigError, match="temperature 0"):
        SampledTopK(small.target(), ids, small.FIRST, 3, 0)
    with pytest.raises(ConfigError, match="verification"):
        SampledTopK(small.target(), ids, small.FIRST, 3, 1.0, verification="loose")
