"""Verifiers that are known to be wrong fail the measure by which the right ones pass, on most pairs."""

from dataclasses import replace

import pytest
import torch
from draft_trees import all_drafts, laid_out, law_of_three
from sampling_pairs import distance, exact_ways, judged, pairs, worlds

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, sample_candidates
from dare_job.decode.sampling.rules import RULES, gather_at
from dare_job.decode.sampling.traversal import _Traversal, traversal_distribution
from dare_job.decode.sampling.verify import Verifier

EXACT = 1e-12
RRS, K_SEQ, GREEDY = RULES["rrs"], RULES["k_seq"], RULES["greedy"]


def _not_renormalised(law, state, j):
    return RRS.reject(law, state, j)._replace(p=(state.p - state.s).clamp_min(0))


def _with_epsilon(state, j):
    token = state.candidates[:, j]
    return (gather_at(state.p, token) / (gather_at(state.s, token) + 1e-10)).clamp_max(1)


def _raw(law, p, q, candidates):
    """q before its temperature of one half."""
    return RRS.start(law, p, q.sqrt() / q.sqrt().sum(-1, keepdim=True), candidates)


def _unbounded(law, p, q, candidates):
    return K_SEQ.start(law, p, q, candidates)._replace(s=q)


WRONG = {
    "residual not renormalised": (replace(RRS, reject=_not_renormalised), "without_replacement", None),
    "epsilon in the ratio": (replace(RRS, accept=_with_epsilon), "without_replacement", None),
    "raw logits for q": (replace(RRS, start=_raw), "without_replacement", None),
    "with replacement, of draws without": (RRS, "iid", "without_replacement"),
    "sequential, of distinct draws": (RRS, "without_replacement", "distinct"),
    "distinct, of sequential draws": (RRS, "distinct", "without_replacement"),
    "drawn, of the most probable": (RRS, "iid", "top_k"),
    "K-SEQ of draws without replacement": (K_SEQ, "iid", "without_replacement"),
    "K-SEQ with a threshold of one": (replace(K_SEQ, start=_unbounded), "iid", None),
    "greedy, of independent draws": (GREEDY, "greedy", "iid"),
    "residual of q": (replace(RRS, residual=lambda state: state.q), "iid", None),
    "first draw always accepted": (replace(RRS, accept=lambda state, j: state.extra + 1), "iid", None),
}


@pytest.mark.parametrize("name", WRONG)
def test_caught(name):
    rule, law, drawn_by = WRONG[name]
    caught = []
    for tokens, n in ((4, 2), (5, 3)):
        verifier = Verifier(rule, law, n)
        for p, q in pairs(tokens)[:4]:  # those with all tokens in both
            output, _ = judged(verifier, p, q, DISTRIBUTIONS[drawn_by or law])
            caught.append(distance(output, p) > EXACT)
    assert sum(caught) >= len(caught) / 2


def _weight_kept(self, step):
    """A rejected node takes its share from the law that is owed, and not from its parent's weight."""
    up = step.depth - 1, step.row
    weight = self.weight[up].clone()
    RIGHT_REJECT(self, step)
    self.weight[up] = weight


def _always_the_first(self, here, node, place):
    """s stays the law of the first candidate."""
    RIGHT_NEXT(self, here, node, torch.where(place < self.tree.draws[node], 0, place))


RIGHT_REJECT, RIGHT_NEXT = _Traversal._reject, _Traversal._next
WRONG_TRAVERSALS = {"_reject": _weight_kept, "_next": _always_the_first}


@pytest.mark.parametrize("step", [None, *WRONG_TRAVERSALS])
def test_traversals_that_are_wrong_are_caught(step, monkeypatch):
    """By all trees of two levels drawn without replacement; where nothing is wrong none is."""
    if step:
        monkeypatch.setattr(_Traversal, step, WRONG_TRAVERSALS[step])
    caught = []
    for world in worlds(3)[:2]:  # those with all tokens in both
        first, second, chances = all_drafts("without_replacement", world, (2, 2))
        tree, p, q = laid_out(world, first, second)
        ends = traversal_distribution("without_replacement", tree, p, q)
        found, _ = law_of_three(world, tree, ends, chances, (2, 2))
        caught.append(float((found - world.law()).abs().sum()) / 2 > EXACT)
    assert caught == [bool(step)] * 2


def test_numbers_that_are_none():
    """A row whose p or q are no probabilities emits nothing; its neighbours emit what they would alone."""
    p, q = (x.repeat(6, 1) for x in pairs(4)[1])
    p[0, 1], p[1], q[2, 0], q[3], p[4, 2] = torch.nan, 0, torch.nan, 0, torch.inf
    uniforms = torch.rand((6, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for rule, name in sorted({way[:2] for way in exact_ways() if way[0] != "speculative"}):
        drawn = sample_candidates(DISTRIBUTIONS[name], q, 2, uniforms)
        assert (drawn[2:4] == -1).all()
        verifier = Verifier(rule, name, 2)
        done = verifier.verify(p, q, drawn, uniforms)
        assert (done.token[[0, 1, 4]] == -1).all() and (done.place[[0, 1, 4]] == -1).all()
        alone = verifier.verify(p[5:], q[5:], drawn[5:], uniforms[5:])
        assert done.token[5] == alone.token[0] and done.place[5] == alone.place[0]
