"""Verification rules against a simple reference, on random trees of small vocabularies."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from dare_job.decode.model.tree import build
from dare_job.decode.settings import RULES, EngineSettings
from dare_job.decode.verify import relaxed_compiled, rules
from dare_job.decode.verify import verifier as of_settings
from dare_job.decode.verify.compiled import argmax
from dare_job.decode.verify.penalty import PenaltyContext
from dare_job.decode.verify.result import longest_accepted, verify_roots
from pools.tree import ROOT, DraftBatch, empty_drafts

EOS = 2


def _by_tensors(case: EngineSettings):
    """Return the verifier of GPUs, run on a CPU."""
    def verify(scores, tree, mask):
        if case.rule == "strict":
            return longest_accepted(tree, rules.verify_strict(scores, tree, mask))
        return longest_accepted(tree, rules.verify_relaxed(scores, tree, mask, eos=torch.tensor([EOS]),
                                                           conditions=relaxed_compiled.thresholds(case)))
    return verify


def verifier(rule: str, eos: tuple = (EOS,), **settings):
    return of_settings(EngineSettings(rule=rule, **settings), torch.tensor(eos, dtype=torch.long))


def _passes(settings: EngineSettings, scores: np.ndarray, token: int) -> bool:
    """Return whether a draft token passes after a node, by the definitions of the rules."""
    q = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    first = token == int(scores.argmax())
    in_top = sum(other > scores[token] for other in scores) < settings.k and q[token] > 0
    entropy = -sum(share * math.log(share) for share in q if share > 0)
    bound = min(settings.epsilon, settings.delta * math.exp(-entropy))
    if token == EOS and not first:
        return False
    return {"strict": first, "relaxed": first or (in_top and q[token] > settings.p), "top_k": in_top,
            "threshold": first or q[token] > settings.p, "literal": in_top and q[token] > settings.p,
            "ratio": first or q[token] >= settings.c * q.max(), "entropy": first or q[token] > bound,
            }[settings.rule]


def _reference(passes, scores, tokens, parents, size):
    """Return (path columns, bonus, relaxed tokens) of one row by trying every branch.

    ``passes(node, depth, token)``: whether a child of the node passes. Among branches of the same length, the
    sum of log probabilities decides.
    """
    best = ((0, 0.0), [0])
    logp = scores - np.log(np.exp(scores).sum(-1, keepdims=True))

    def walk(node, path, sure):
        nonlocal best
        if (len(path) - 1, sure) > best[0]:
            best = ((len(path) - 1, sure), path)
        for child in range(size):
            token = int(tokens[child])
            if parents[child] + 1 == node and passes(node, len(path), token):
                walk(child + 1, [*path, child + 1], sure + logp[node, token])

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


VOCABULARY, ROWS = 6, 40
CASES = [EngineSettings(rule="strict")]
CASES += [EngineSettings(rule=rule, k=k, p=p) for rule in ("relaxed", "top_k", "threshold", "literal")
          for k, p in ((1, 0.0), (2, 0.1), (3, 0.25), (6, 0.0))]
CASES += [EngineSettings(rule="ratio", c=c) for c in (0.01, 0.3, 0.5, 1.0)]
CASES += [EngineSettings(rule="entropy", epsilon=epsilon, delta=delta)
          for epsilon, delta in ((0.09, 0.3), (0.2, 0.9), (0.02, 1.0), (1.0, 0.1), (0.4, 0.4))]


def _seeded(seed: int):
    """Return random trees, scores float32 with ties, banned tokens and ends of text, and strict nodes."""
    rng = np.random.default_rng(seed)
    drafts = _random_tree(rng, ROWS, 9, VOCABULARY)
    tree = build(np.zeros(ROWS, np.int64), drafts, np.full(ROWS, 64))
    scores = rng.normal(0, 2, (len(tree.tokens), VOCABULARY)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = -np.inf  # banned tokens
    scores[..., 5] = 0.0
    level = rng.random(len(scores)) < 0.15  # ties, also of the argmax
    scores[level] = np.round(scores[level])
    flat = rng.random(len(scores)) < 0.05
    scores[flat] = 0.0
    past_limit = np.where(rng.random(ROWS) < 0.3, rng.integers(-3, 1, ROWS), -99)  # tokens past a row's limit
    past_limit[rng.random(ROWS) < 0.15] = 99  # strict rows
    strict = np.repeat(past_limit, np.diff(tree.starts)) + tree.host[2] > 0
    return drafts, tree, scores, past_limit, strict if seed % 2 else None


def _mismatches(case: EngineSettings, verify, seeds=range(8)) -> tuple[int, int]:
    """Count rows that differ from the reference, and relaxed tokens of the reference."""
    wrong = relaxed = 0
    for seed in seeds:
        drafts, tree, scores, past_limit, strict = _seeded(seed)
        mask = None if strict is None else torch.from_numpy(strict)
        result = verify(torch.from_numpy(scores), tree, mask)
        for r in range(ROWS):
            exact = scores[tree.starts[r] : tree.starts[r + 1]].astype(np.float64)

            def passes(node, depth, token, r=r, exact=exact, strict=strict, past_limit=past_limit):
                if strict is not None and past_limit[r] + depth > 0:
                    return token == int(exact[node].argmax())
                return _passes(case, exact[node], token)

            path, bonus, count = _reference(passes, exact, drafts.tokens[r], drafts.parents[r],
                                            drafts.sizes[r])
            n = len(path) - 1
            accepted = drafts.tokens[r, np.array(path[1:], int) - 1]
            wrong += not (
                result.counts[r] == n and result.paths[r, : n + 1].tolist() == path
                and result.tokens[r, : n + 1].tolist() == [*accepted, bonus]
                and result.relaxed[r, :n].sum() == count)
            relaxed += count
    return wrong, relaxed


def _name(case: EngineSettings) -> str:
    return f"{case.rule}-{case.k}-{case.p}-{case.c}-{case.epsilon}-{case.delta}"


@pytest.mark.parametrize("case", CASES, ids=_name)
@pytest.mark.parametrize("by", ["compiled", "tensors"])
def test_rules_against_the_reference(by, case):
    verify = _by_tensors(case) if by == "tensors" else of_settings(case, torch.tensor([EOS]))
    wrong, relaxed = _mismatches(case, verify)
    assert wrong == 0
    tight = {"strict": True, "relaxed": case.k == 1, "literal": case.k == 1, "top_k": False,
             "threshold": False, "ratio": False, "entropy": False}[case.rule]  # except for ties of all tokens
    assert relaxed > 0 or tight


def _over(base=math.e, least=torch.minimum, **changes):
    """Return the entropy rule with a different logarithm, bound or parameter."""
    def rule(drafts, settings):
        settings = dataclasses.replace(settings, **changes)
        entropy = torch.special.entr(drafts.scores.softmax(-1)).sum(-1)[drafts.parents] / math.log(base)
        bound = least(torch.tensor(settings.epsilon), settings.delta * torch.exp(-entropy))
        return drafts.is_top | (drafts.logp.exp() > bound)
    return rule


def _right(drafts, settings, meets=rules.meets):
    return meets(drafts, relaxed_compiled.thresholds(settings))


def _shifted(drafts, settings):
    """Apply the rule to the distribution of another node."""
    return _right(dataclasses.replace(drafts, scores=drafts.scores.roll(1, 0), sums=drafts.sums.roll(1)),
                  settings)


def _top(drafts):
    return drafts.scores.amax(-1)[drafts.parents]


RATIO, TIES = EngineSettings(rule="ratio", c=0.3), EngineSettings(rule="ratio", c=1.0)
WIDE, USUAL = (EngineSettings(rule="entropy", epsilon=0.2, delta=0.9),
               EngineSettings(rule="entropy", epsilon=0.09, delta=0.3))
WRONG = [(case, what, rule) for case in (RATIO, WIDE, USUAL) for what, rule in {
    "strict": lambda drafts, settings: drafts.is_top,
    "everything": lambda drafts, settings: drafts.own.isfinite(),
    "threshold": lambda drafts, settings: drafts.is_top | (drafts.logp.exp() > settings.p),
    "another node's": _shifted,
    "not the first": lambda drafts, settings: _right(drafts, settings) & ~drafts.is_top}.items()]
WRONG += [
    (RATIO, "of scores", lambda drafts, settings: drafts.is_top | (drafts.own >= settings.c * _top(drafts))),
    (TIES, "strict", lambda drafts, settings: drafts.is_top),
    (TIES, "above, not from", lambda drafts, settings: drafts.is_top | (drafts.own - _top(drafts) > 0)),
    (WIDE, "bits", _over(base=2)), (USUAL, "bits", _over(base=2)),
    (WIDE, "larger", _over(least=torch.maximum)), (USUAL, "larger", _over(least=torch.maximum)),
    (WIDE, "no epsilon", _over(epsilon=1.0)),
    (USUAL, "no delta", _over(delta=1.0))]


@pytest.mark.parametrize(("case", "what", "rule"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_the_reference_detects_wrong_rules(case, what, rule, monkeypatch):
    monkeypatch.setattr(rules, "meets", lambda drafts, _: rule(drafts, case))
    assert _mismatches(case, _by_tensors(case))[0] > 0


@pytest.mark.parametrize("width", [1, 255, 256, 257, 5000])
@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 30.0, 1e30])
def test_sums_over_the_vocabulary_equal_those_of_numpy(width, spread):
    line = (spread * np.random.default_rng(width).normal(0, 1, width)).astype(np.float32)
    line[1:][::7] = -np.inf
    x = line.astype(np.float64) - line.max()
    shares = np.exp(x)
    total, moment = relaxed_compiled._exponentials(line, line.max())
    assert total == pytest.approx(shares.sum(), rel=2e-6)
    assert moment == pytest.approx((shares * np.maximum(x, -87)).sum(), rel=2e-6, abs=1e-30)


@pytest.mark.parametrize("case", [case for case in CASES if case.rule in ("ratio", "entropy")], ids=_name)
def test_the_reference_detects_ends_of_text_and_strict_nodes(case):
    right = of_settings(case, torch.tensor([EOS]))
    assert _mismatches(case, lambda scores, tree, strict: right(scores, tree))[0] > 0
    open_end = of_settings(case, torch.tensor([], dtype=torch.long))
    assert _mismatches(case, open_end)[0] > 0


@pytest.mark.parametrize("rule", RULES)
def test_contract(rule):
    """No drafts, and non-finite scores."""
    verify = verifier(rule)
    tokens = np.array([[3, 3], [3, 3]], np.int32)
    drafts = DraftBatch(tokens, np.array([[ROOT, 0]] * 2, np.int32), np.array([2, 0], np.int32), None, None)
    tree = build(np.array([3, 3]), drafts, np.full(2, 8))
    scores = torch.full((4, 5), -9.0)
    scores[:, 3] = 0.0
    before = scores.clone()
    result = verify(scores, tree)
    assert torch.equal(scores, before), "a rule must not change its scores"
    assert result.counts.tolist() == [2, 0]
    assert result.tokens[0].tolist() == [3, 3, 3] and result.tokens[1, 0] == 3
    assert result.finite.all()
    scores[3] = torch.nan
    assert verify(scores, tree).finite.tolist() == [True, False]


@pytest.mark.parametrize("rule", RULES)
def test_a_tree_without_drafts_has_the_same_result_without_a_rule(rule):
    scores = torch.randn((5, 7), generator=torch.Generator().manual_seed(0))
    scores[1], scores[2, 3], scores[3] = torch.nan, torch.inf, -torch.inf
    tree = build(np.arange(5), empty_drafts(5), np.full(5, 4))
    settings, eos = EngineSettings(rule=rule), torch.tensor([EOS])
    full = _by_tensors(settings)(scores, tree, None)
    for shortcut in (verify_roots(scores), of_settings(settings, eos)(scores, tree)):
        for name, a, b in zip(full._fields, shortcut, full, strict=True):
            assert np.array_equal(a, b) and np.asarray(a).dtype == np.asarray(b).dtype, name


def test_argmax_equals_that_of_numpy():
    rng = np.random.default_rng(0)
    for width in (1, 2, 255, 256, 257, 700):
        for spread in (0.0, 1.0, 1e30):
            line = (spread * rng.normal(0, 1, width)).astype(np.float32)
            lines = [line, -line, np.round(line), np.where(rng.random(width) < 0.5, -0.0, 0.0), -np.abs(line)]
            for special in (np.inf, -np.inf, np.nan, -np.nan):
                changed = line.copy()
                changed[rng.integers(0, width, 3)] = special
                lines += [changed, np.full(width, special)]
            for one in lines:
                one = np.ascontiguousarray(one, np.float32)
                choice, finite = argmax(one)
                assert choice == one.argmax() and finite == np.isfinite(one[choice])


@pytest.mark.parametrize("penalty", [0.8, 1.05, 1.3, 5.0])
@pytest.mark.parametrize("width", [5, 300])
def test_a_penalty_applied_to_winning_tokens_only_gives_the_same_result(penalty, width):
    """Compared with a penalty on all tokens of each node's prefix; with ties and zeros among the best."""
    rng = np.random.default_rng(width)
    stamps, accepted = np.zeros(width + 1, np.int64), 0
    for _ in range(60):
        context, lengths = rng.integers(0, width, (2, 6)).astype(np.int32), np.array([6, 4])
        roots = context[[0, 1], lengths - 1].astype(np.int64)
        tree = build(roots, _random_tree(rng, 2, 9, width), np.full(2, 64))
        tokens, parents, depths, starts = tree.host
        scores = rng.integers(-3, 4, (len(tokens), width)) * rng.choice([0.0, 0.5, 1.0], (len(tokens), 1))
        liked = np.flatnonzero((depths > 0) & (rng.random(len(tokens)) < 0.5))
        scores[parents[liked], tokens[liked]] = 3.3
        scores = scores.astype(np.float32)
        whole = scores.copy()
        for node, row in enumerate(np.repeat([0, 1], np.diff(starts))):
            seen, here = set(context[row, : lengths[row]].tolist()), node
            while depths[here] > 0:
                seen.add(int(tokens[here]))
                here = parents[here]
            for token in seen:
                old = whole[node, token]
                whole[node, token] = old * np.float32(penalty) if old < 0 else old / np.float32(penalty)
        expected = longest_accepted(tree, rules.verify_strict(torch.from_numpy(whole), tree))
        seen = PenaltyContext(context, lengths, stamps, penalty)
        found = verifier("strict")(torch.from_numpy(scores), tree, None, seen)
        for name in ("counts", "finite"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name
        for row, count in enumerate(expected.counts):
            for name in ("tokens", "paths"):
                assert np.array_equal(getattr(found, name)[row, : count + 1],
                                      getattr(expected, name)[row, : count + 1]), name
        accepted += expected.counts.sum()
    assert accepted > 20


@pytest.mark.parametrize("seed", range(4))
def test_strict_results_depend_on_the_accepted_path_only(seed):
    """Following the path on a CPU gives the result of verifying every node."""
    _, tree, scores, _, _ = _seeded(seed)
    scores[np.random.default_rng(seed).random(len(scores)) < 0.2] = np.nan
    whole = longest_accepted(tree, rules.verify_strict(torch.from_numpy(scores), tree))
    walked = verifier("strict")(torch.from_numpy(scores), tree)
    for name in ("counts", "tokens", "paths", "relaxed", "finite"):
        assert np.array_equal(getattr(walked, name), getattr(whole, name)), name
    assert not (whole.tree_finite & ~walked.tree_finite).any()
    finite = walked.tree_finite
    assert (finite <= walked.finite).all() and 0 < finite.sum() < len(finite)


def test_the_more_probable_of_equally_long_branches_wins():
    drafts = DraftBatch(np.array([[1, 4]], np.int32), np.full((1, 2), ROOT, np.int32),
                        np.array([2], np.int32), None, None)
    tree = build(np.array([0]), drafts, np.array([4]))
    scores = torch.tensor([0.0, 1.0, -5.0, 0.0, 1.5]).expand(3, 5).contiguous()
    result = verifier("relaxed")(scores, tree)
    assert result.paths[0].tolist() == [0, 2] and not result.relaxed[0, 0]


def test_end_of_text_only_as_the_argmax():
    drafts = DraftBatch(np.array([[EOS]], np.int32), np.array([[ROOT]], np.int32), np.array([1], np.int32),
                        None, None)
    tree = build(np.array([0]), drafts, np.array([4]))
    scores = torch.tensor([0.0, 1.0, 0.9, 0.0]).expand(2, 4).contiguous()
    for rule in RULES:
        verify = verifier(rule, k=4, p=0.01, c=0.01, epsilon=0.01)
        assert verify(scores, tree).counts[0] == 0
        assert verify(scores.roll(1, 1), tree).counts[0] == 1


def test_nodes_deeper_than_a_row_may_go_are_left_out():
    chain = DraftBatch(np.array([[1, 1, 1]] * 2, np.int32), np.array([[ROOT, 0, 1]] * 2, np.int32),
                       np.full(2, 3, np.int32), None, None)
    tree = build(np.array([0, 0]), chain, np.array([1, 3]))
    assert tree.starts.tolist() == [0, 2, 6]
    scores = torch.tensor([0.0, 1.0]).expand(6, 2).contiguous()
    result = verifier("strict", eos=())(scores, tree)
    assert result.counts.tolist() == [1, 3]


@pytest.mark.parametrize("rule", RULES)
def test_a_token_without_a_logit_does_not_pass(rule):
    """The embedding may be larger than the output head; descendants of such tokens do not pass either."""
    drafts = DraftBatch(np.array([[9, 1, 1]], np.int32), np.array([[ROOT, 0, ROOT]], np.int32),
                        np.array([3], np.int32), None, None)
    tree = build(np.array([0]), drafts, np.array([4]))
    scores = torch.tensor([0.0, 1.0, -5.0, 0.9]).expand(4, 4).contiguous()
    result = verifier(rule, k=4, p=0.0)(scores, tree)
    assert result.paths[0, : result.counts[0] + 1].tolist() == [0, 3]
