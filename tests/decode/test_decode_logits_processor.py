"""Penalties and banned tokens on trees equal those of transformers on each node's prefix."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from dare_job.decode.engine import generation_config
from dare_job.decode.engine.logits_processor import TreeLogitsProcessor, banned_tokens
from dare_job.decode.model.tree import build
from dare_job.decode.settings import RULES, EngineSettings
from dare_job.decode.verify import verifier
from pools.tree import ROOT, DraftBatch

ROWS, NODES, VOCABULARY = 5, 12, 9
WRITABLE = 8  # tokens with a logit; the embedding has more


def _trees(seed: int):
    """Return trees, some without drafts, their rows' texts int32 (R, L) of several lengths, and prefixes."""
    rng = np.random.default_rng(seed)
    parents = np.stack([[rng.integers(ROOT, node) for node in range(NODES)] for _ in range(ROWS)])
    tokens, sizes = rng.integers(0, VOCABULARY, (ROWS, NODES)), rng.integers(0, NODES + 1, ROWS)
    lengths, context = rng.integers(1, 40, ROWS), rng.integers(0, VOCABULARY, (ROWS, 50)).astype(np.int32)
    roots = context[np.arange(ROWS), lengths - 1]
    drafts = DraftBatch(tokens.astype(np.int32), parents.astype(np.int32), sizes.astype(np.int32), None, None)
    tree = build(roots, drafts, np.full(ROWS, NODES))
    paths = tree.ancestors.numpy()
    prefixes = []
    for row in range(ROWS):
        start, end = tree.starts[row], tree.starts[row + 1]
        for node in range(start, end):
            drafted = tree.host[0][start:end][paths[node, : end - start]][1:]
            prefixes.append(np.concatenate((context[row, : lengths[row]], drafted)))
    return tree, context, lengths, prefixes


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_banned_tokens_equal_those_of_transformers(size, seed):
    tree, context, lengths, prefixes = _trees(seed)
    nodes, tokens = banned_tokens(tree, context, lengths, size, WRITABLE)
    found = np.zeros((len(tree), VOCABULARY), np.bool_)
    found[nodes, tokens] = True
    processor = NoRepeatNGramLogitsProcessor(size)
    for node, prefix in enumerate(prefixes):
        scores = processor(torch.from_numpy(prefix.astype(np.int64))[None], torch.zeros(1, VOCABULARY))
        assert np.array_equal(np.flatnonzero(found[node]),
                              np.flatnonzero(torch.isinf(scores[0, :WRITABLE]).numpy())), node
    assert found.any() or size > 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(4))
def test_a_deferred_penalty_gives_the_same_result(rule, seed):
    tree, context, lengths, prefixes = _trees(seed)
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (len(tree), WRITABLE))).float()
    penalty, expected = RepetitionPenaltyLogitsProcessor(1.7), logits.clone()
    for node, prefix in enumerate(prefixes):
        ids = torch.from_numpy(prefix[prefix < WRITABLE].astype(np.int64))[None]
        if ids.shape[1]:
            expected[node] = penalty(ids, expected[node : node + 1])[0]
    verify = verifier(EngineSettings(rule=rule, k=3, p=0.01, c=0.1), torch.tensor([1]))
    rules = generation_config.read_rules(GenerationConfig(repetition_penalty=1.7))
    scores, seen = TreeLogitsProcessor(rules, VOCABULARY)(logits.clone(), tree, context, lengths, lengths, ())
    assert seen.penalty == 1.7 and torch.equal(scores, logits)
    found, wanted = verify(scores, tree, None, seen), verify(expected, tree)
    assert np.array_equal(found.counts, wanted.counts) and np.array_equal(found.finite, wanted.finite)
    for row, count in enumerate(found.counts):
        for name in ("paths", "tokens", "relaxed"):
            assert np.array_equal(getattr(found, name)[row, : count + 1],
                                  getattr(wanted, name)[row, : count + 1]), name


@pytest.mark.parametrize("seed", range(4))
def test_a_penalty_on_tensors_equals_that_of_transformers(seed):
    from dare_job.decode.engine.logits_processor import _penalize

    tree, context, lengths, prefixes = _trees(seed)
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (len(tree), WRITABLE))).float()
    penalty, found = RepetitionPenaltyLogitsProcessor(1.7), logits.clone()
    _penalize(found, tree, context, lengths, 1.7)
    for node, prefix in enumerate(prefixes):
        ids = torch.from_numpy(prefix[prefix < WRITABLE].astype(np.int64))[None]
        wanted = penalty(ids, logits[node : node + 1]) if ids.shape[1] else logits[node : node + 1]
        assert torch.equal(found[node], wanted[0]), node
