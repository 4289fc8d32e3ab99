"""Verification rules against a plain reference, on every tree of random small vocabularies."""

import dataclasses

import numpy as np
import pytest
import torch

from dare_job.decode.request import RULES
from dare_job.decode.tree import build
from dare_job.decode.verify import verifier
from dare_job.decode.verify.verdict import longest, undrafted
from pools.tree import ROOT, DraftBatch, empty

EOS = 2


def _passes(rule: str, k: int, p: float, scores: np.ndarray, token: int) -> bool:
    """One draft token behind a node, by the words of the rules."""
    probabilities = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    first = token == int(scores.argmax())
    in_top = (scores > scores[token]).sum() < k and probabilities[token] > 0
    over = probabilities[token] > p
    if token == EOS and not first:
        return False
    return {"strict": first, "relaxed": first or (in_top and over), "top_k": in_top,
            "threshold": first or over, "literal": in_top and over}[rule]


def _reference(rule, k, p, scores, tokens, parents, size):
    """(path columns, bonus, relaxed tokens) of one row: every branch is walked, the best one kept."""
    best = ((0, 0.0), [0])
    logp = scores - np.log(np.exp(scores).sum(-1, keepdims=True))

    def walk(node, path, sure):
        nonlocal best
        if (len(path) - 1, sure) > best[0]:
            best = ((len(path) - 1, sure), path)
        for child in range(size):
            if parents[child] + 1 == node and _passes(rule, k, p, scores[node], int(tokens[child])):
                gain = 0 if rule == "strict" else logp[node, tokens[child]]
                walk(child + 1, [*path, child + 1], sure + gain)

    walk(0, [0], 0.0)
    path = best[1]
    relaxed = sum(int(tokens[b - 1]) != int(scores[a].argmax()) for a, b in zip(path, path[1:], strict=False))
    return path, int(scores[path[-1]].argmax()), relaxed


def _random_tree(rng, rows, nodes, vocabulary):
    tokens, parents = np.zeros((rows, nodes), np.int32), np.full((rows, nodes), ROOT, np.int32)
    sizes = rng.integers(0, nodes + 1, rows).astype(np.int32)
    for r in range(rows):
        used = set()
        for i in range(sizes[r]):
            while True:
                parent, token = int(rng.integers(ROOT, i)), int(rng.integers(vocabulary))
                if (parent, token) not in used:
                    break
            used.add((parent, token))
            tokens[r, i], parents[r, i] = token, parent
    return DraftBatch(tokens, parents, sizes, None, None)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("k", "p"), [(1, 0.0), (2, 0.1), (3, 0.25), (6, 0.0)])
def test_rules_against_the_reference(rule, k, p):
    rng = np.random.default_rng(k)
    vocabulary, rows, nodes, deepest = 6, 40, 9, 64
    verify = verifier(rule, k, p, torch.tensor([EOS]))
    relaxed = 0
    for _ in range(8):
        drafts = _random_tree(rng, rows, nodes, vocabulary)
        tree = build(np.zeros(rows, np.int64), drafts, np.full(rows, deepest))
        scores = rng.normal(0, 2, (len(tree.tokens), vocabulary)).astype(np.float32)
        scores[rng.random(scores.shape) < 0.1] = -np.inf  # banned tokens
        scores[..., 5] = 0.0
        verdict = longest(tree, verify(torch.from_numpy(scores), tree))
        for r in range(rows):
            own = scores[tree.starts[r] : tree.starts[r + 1]].astype(np.float64)
            path, bonus, count = _reference(rule, k, p, own, drafts.tokens[r],
                                            drafts.parents[r], drafts.sizes[r])
            n = len(path) - 1
            assert verdict.counts[r] == n
            assert verdict.paths[r, : n + 1].tolist() == path
            accepted = drafts.tokens[r, np.array(path[1:], int) - 1]
            assert verdict.tokens[r, : n + 1].tolist() == [*accepted, bonus]
            assert verdict.relaxed[r, :n].sum() == count
            relaxed += count
    assert (relaxed > 0) == (rule != "strict" and (k > 1 or rule == "threshold"))


@pytest.mark.parametrize("rule", RULES)
def test_contract(rule):
    """No drafts, and scores that are no numbers."""
    verify = verifier(rule, 2, 0.1, torch.tensor([EOS]))
    tokens = np.array([[3, 3], [3, 3]], np.int32)
    drafts = DraftBatch(tokens, np.array([[ROOT, 0]] * 2, np.int32), np.array([2, 0], np.int32), None, None)
    tree = build(np.array([3, 3]), drafts, np.full(2, 8))
    scores = torch.full((4, 5), -9.0)
    scores[:, 3] = 0.0
    before = scores.clone()
    verdict = longest(tree, verify(scores, tree))
    assert torch.equal(scores, before), "a rule must not change its scores"
    assert verdict.counts.tolist() == [2, 0]
    assert verdict.tokens[0].tolist() == [3, 3, 3] and verdict.tokens[1, 0] == 3
    assert verdict.finite.all()
    scores[3] = torch.nan
    assert longest(tree, verify(scores, tree)).finite.tolist() == [True, False]


@pytest.mark.parametrize("rule", RULES)
def test_a_tree_without_drafts_has_the_same_verdict_without_a_rule(rule):
    scores = torch.randn((5, 7), generator=torch.Generator().manual_seed(0))
    scores[1], scores[2, 3], scores[3] = torch.nan, torch.inf, -torch.inf
    tree = build(np.arange(5), empty(5), np.full(5, 4))
    full = longest(tree, verifier(rule, 2, 0.1, torch.tensor([EOS]))(scores, tree))
    shortcut = undrafted(scores)
    for field in dataclasses.fields(full):
        a, b = getattr(shortcut, field.name), getattr(full, field.name)
        assert np.array_equal(a, b) and a.dtype == b.dtype, field.name


def test_the_more_probable_of_equally_long_branches_wins():
    drafts = DraftBatch(np.array([[1, 4]], np.int32), np.full((1, 2), ROOT, np.int32),
                        np.array([2], np.int32), None, None)
    tree = build(np.array([0]), drafts, np.array([4]))
    scores = torch.tensor([0.0, 1.0, -5.0, 0.0, 1.5]).expand(3, 5).contiguous()
    verdict = longest(tree, verifier("relaxed", 2, 0.1, torch.tensor([EOS]))(scores, tree))
    assert verdict.paths[0].tolist() == [0, 2] and not verdict.relaxed[0, 0]


def test_end_of_text_only_as_the_first_choice():
    drafts = DraftBatch(np.array([[EOS]], np.int32), np.array([[ROOT]], np.int32), np.array([1], np.int32),
                        None, None)
    tree = build(np.array([0]), drafts, np.array([4]))
    scores = torch.tensor([0.0, 1.0, 0.9, 0.0]).expand(2, 4).contiguous()
    for rule in RULES:
        verify = verifier(rule, 4, 0.01, torch.tensor([EOS]))
        assert longest(tree, verify(scores, tree)).counts[0] == 0
        assert longest(tree, verify(scores.roll(1, 1), tree)).counts[0] == 1


def test_nodes_deeper_than_a_row_may_go_are_left_out():
    chain = DraftBatch(np.array([[1, 1, 1]] * 2, np.int32), np.array([[ROOT, 0, 1]] * 2, np.int32),
                       np.full(2, 3, np.int32), None, None)
    tree = build(np.array([0, 0]), chain, np.array([1, 3]))
    assert tree.starts.tolist() == [0, 2, 6]
    scores = torch.tensor([0.0, 1.0]).expand(6, 2).contiguous()
    verdict = longest(tree, verifier("strict", 1, 0.0, torch.tensor([], dtype=torch.long))(scores, tree))
    assert verdict.counts.tolist() == [1, 3]


@pytest.mark.parametrize("rule", RULES)
def test_a_token_without_a_score_does_not_pass(rule):
    """The embedding may hold tokens that the model cannot write; what hangs on them falls with them."""
    drafts = DraftBatch(np.array([[9, 1, 1]], np.int32), np.array([[ROOT, 0, ROOT]], np.int32),
                        np.array([3], np.int32), None, None)
    tree = build(np.array([0]), drafts, np.array([4]))
    scores = torch.tensor([0.0, 1.0, -5.0, 0.9]).expand(4, 4).contiguous()
    verdict = longest(tree, verifier(rule, 4, 0.0, torch.tensor([EOS]))(scores, tree))
    assert verdict.paths[0, : verdict.counts[0] + 1].tolist() == [0, 3]
