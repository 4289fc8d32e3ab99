"""Verifiers known to be wrong fail the criterion that the correct ones pass, on most pairs."""

from dataclasses import replace

import pytest
import torch
from draft_trees import enumerate_trees, flatten_trees, three_token_distribution
from exact_trees import traversal_distribution
from sampling_pairs import distance, exact_cases, exact_output, pairs, worlds

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, sample_candidates
from dare_job.decode.sampling.rules import RULES, gather_at
from dare_job.decode.sampling.traversal import Traversal
from dare_job.decode.sampling.verify import Verifier

EXACT = 1e-12
RRS, K_SEQ, GREEDY = RULES["rrs"], RULES["k_seq"], RULES["greedy"]


def _not_renormalised(distribution, state, j):
    return RRS.reject(distribution, state, j)._replace(p=(state.p - state.s).clamp_min(0))


def _with_epsilon(state, j):
    token = state.candidates[:, j]
    return (gather_at(state.p, token) / (gather_at(state.s, token) + 1e-10)).clamp_max(1)


def _raw(distribution, p, q, candidates):
    """Start with q before its temperature of one half."""
    return RRS.start(distribution, p, q.sqrt() / q.sqrt().sum(-1, keepdim=True), candidates)


def _unbounded(distribution, p, q, candidates):
    return K_SEQ.start(distribution, p, q, candidates)._replace(s=q)


WRONG = {
    "residual not renormalised": (replace(RRS, reject=_not_renormalised), "without_replacement", None),
    "epsilon in the ratio": (replace(RRS, accept=_with_epsilon), "without_replacement", None),
    "raw logits for q": (replace(RRS, start=_raw), "without_replacement", None),
    "iid rule for candidates without replacement": (RRS, "iid", "without_replacement"),
    "without-replacement rule for distinct candidates": (RRS, "without_replacement", "distinct"),
    "distinct rule for candidates without replacement": (RRS, "distinct", "without_replacement"),
    "iid rule for top-k candidates": (RRS, "iid", "top_k"),
    "K-SEQ for candidates without replacement": (K_SEQ, "iid", "without_replacement"),
    "K-SEQ with a threshold of one": (replace(K_SEQ, start=_unbounded), "iid", None),
    "greedy rule for iid candidates": (GREEDY, "greedy", "iid"),
    "residual is q": (replace(RRS, residual=lambda state: state.q), "iid", None),
    "first candidate always accepted": (replace(RRS, accept=lambda state, j: state.extra + 1), "iid", None),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_caught(name):
    rule, distribution, drafted_with = WRONG[name]
    caught = []
    for tokens, n in ((4, 2), (5, 3)):
        verifier = Verifier(rule, distribution, n)
        for p, q in pairs(tokens)[:4]:  # those with all tokens in both
            output, _ = exact_output(verifier, p, q, DISTRIBUTIONS[drafted_with or distribution])
            caught.append(distance(output, p) > EXACT)
    assert sum(caught) >= len(caught) / 2


def _keep_weight(self, step):
    """A rejected node reduces its parent's residual, but not its weight."""
    parent = step.depth - 1, step.row
    weight = self.weight[parent].clone()
    RIGHT_REJECT(self, step)
    self.weight[parent] = weight


def _always_first_candidate(self, here, node, place):
    """s stays the distribution of the first candidate."""
    RIGHT_NEXT(self, here, node, torch.where(place < self.tree.requested[node], 0, place))


RIGHT_REJECT, RIGHT_NEXT = Traversal._reject, Traversal._next
WRONG_TRAVERSALS = {"_reject": _keep_weight, "_next": _always_first_candidate}


@pytest.mark.parametrize("step", [None, *WRONG_TRAVERSALS])
def test_traversals_that_are_wrong_are_caught(step, monkeypatch):
    """Over all two-level trees without replacement; the correct traversal passes."""
    if step:
        monkeypatch.setattr(Traversal, step, WRONG_TRAVERSALS[step])
    caught = []
    for world in worlds(3)[:2]:  # those with all tokens in both
        first, second, probabilities = enumerate_trees("without_replacement", world, (2, 2))
        tree, p, q = flatten_trees(world, first, second)
        ends = traversal_distribution("without_replacement", tree, p, q)
        found, _ = three_token_distribution(world, tree, ends, probabilities, (2, 2))
        caught.append(float((found - world.joint()).abs().sum()) / 2 > EXACT)
    assert caught == [bool(step)] * 2


def test_nonfinite_probabilities():
    """A row whose p or q are not probabilities emits nothing; its neighbours emit the same as alone."""
    p, q = (x.repeat(6, 1) for x in pairs(4)[1])
    p[0, 1], p[1], q[2, 0], q[3], p[4, 2] = torch.nan, 0, torch.nan, 0, torch.inf
    uniforms = torch.rand((6, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for rule, name in sorted({way[:2] for way in exact_cases() if way[0] != "speculative"}):
        drawn = sample_candidates(DISTRIBUTIONS[name], q, 2, uniforms)
        assert (drawn[2:4] == -1).all()
        verifier = Verifier(rule, name, 2)
        done = verifier.verify(p, q, drawn, uniforms)
        assert (done.token[[0, 1, 4]] == -1).all() and (done.place[[0, 1, 4]] == -1).all()
        alone = verifier.verify(p[5:], q[5:], drawn[5:], uniforms[5:])
        assert done.token[5] == alone.token[0] and done.place[5] == alone.place[0]
