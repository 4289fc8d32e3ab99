"""Two tokens from sampled trees have the target's distribution, whichever nodes have candidates.

G-tests over 4,000 rows with fixed seeds; a correct sampler fails each with a probability of 1e-6.
"""

import numpy as np
import pytest
import torch
from decode_models import tiny
from scipy.stats import chi2

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import build
from dare_job.decode.request import Request
from dare_job.decode.sampling.distributions import sample_tokens
from dare_job.decode.sampling.random_streams import CHOICE, DRAFT, VERIFY, RowKeys, RowUniforms
from dare_job.decode.sampling.verify import verify_trees
from dare_job.decode.sampling.warp import warp
from dare_job.decode.settings import Warp

VOCABULARY, ROWS, BATCH = 6, 4000, 2000
PROMPT, WARP = np.array([3, 1, 4, 2], np.int32), Warp(temperature=1.5, top_k=5)


@pytest.fixture(scope="module")
def models():
    return (Target(tiny("llama", vocab_size=VOCABULARY, pad_token_id=0)),
            Target(tiny("llama", seed=1, vocab_size=VOCABULARY, pad_token_id=0)))


def _expected(target):
    """The target's distribution of two tokens after the prompt, float64 (V, V)."""
    texts = np.array([[*PROMPT, token] for token in range(VOCABULARY)], np.int64)
    with target.as_transformers() as model, torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(texts)).logits[:, -2:].double()
    first, second = (warp(logits[:, place].float(), WARP)[0].double() for place in (0, 1))
    return (first[0][:, None] * second).numpy()


def _two_tokens(target, draft, distribution, rule, shape, budget, ids, swapped=False):
    """Two tokens of one step, int64 (R, 2); if it emits one token, the second is sampled from the target."""
    requests = tuple(Request(name, PROMPT) for name in ids)
    rows, keys, drafter = len(ids), RowKeys(5).keys_of(ids), ModelDrafter(draft, shape)
    context, ones = np.tile(PROMPT, (rows, 1)), np.ones(rows, np.int32)
    lengths = len(PROMPT) * ones
    found = drafter.sampled(requests, context, lengths, budget * ones, 2 * ones, distribution, WARP,
                            RowUniforms(keys, lengths, DRAFT))
    tree = build(context[:, -1].astype(np.int64), found.drafts, 2 * ones)
    before, cache = lengths.astype(np.int64) - 1, target.new_cache(rows)
    target.prefill(cache, np.arange(rows), context.astype(np.int64), lengths.astype(np.int64))
    p, _ = warp(target.forward(cache, tree, before).float(), WARP)
    candidates, q = found.on_tree(tree)
    if swapped:  # a verifier that assumes another q
        q = torch.softmax(q[torch.arange(len(q))], -1)
    row = np.repeat(np.arange(rows), np.diff(tree.starts))
    node = np.arange(len(row)) - tree.starts[row]
    widest = int(candidates.requested.max()) + 1
    coins = torch.from_numpy(RowUniforms(keys, lengths, VERIFY)(row, node, widest))
    ends = verify_trees(rule, distribution, candidates, p, q, coins)
    nodes, texts = ends.nodes.numpy(), np.full((rows, 3), -1)
    for r in range(rows):
        path, at = [int(ends.token[r])], nodes[r]
        while at != tree.starts[r]:
            path.insert(0, int(tree.host[0][at]))
            at = tree.host[1][at]
        texts[r, : len(path)] = path
    short = texts[:, 1] < 0
    following = torch.from_numpy(_expected(target))[texts[short, 0]]
    coins = RowUniforms(keys, lengths, CHOICE)(np.arange(rows), np.zeros(rows), 1)[short, 0]
    texts[short, 1] = sample_tokens(following, torch.from_numpy(coins)).numpy()
    return texts[:, :2], int((~short).sum())


def _g_test(counts, distribution):
    """The G statistic and its degrees of freedom."""
    expected, seen = distribution * counts.sum(), counts > 0
    assert (expected[seen] > 0).all()
    statistic = 2 * float((counts[seen] * np.log(counts[seen] / expected[seen])).sum())
    return statistic, int((expected > 0).sum()) - 1


def _counted(models, *case, **options):
    counts, longer = np.zeros((VOCABULARY, VOCABULARY)), 0
    for start in range(0, ROWS, BATCH):
        texts, more = _two_tokens(*models, *case, list(range(start, start + BATCH)), **options)
        np.add.at(counts, (texts[:, 0], texts[:, 1]), 1)
        longer += more
    return counts, longer


@pytest.mark.parametrize("distribution,rule,shape,budget", [
    ("iid", "rrs", "3x2", 99), ("without_replacement", "rrs", "3x2", 5), ("distinct", "rrs", "2x2", 99),
    ("greedy", "greedy", "2x2", 4), ("top_k", "rrs", "2x1", 99), ("spechub", "spechub", "2x2", 99),
])
@pytest.mark.fast_cases(3)
def test_two_tokens_have_the_targets_distribution(models, distribution, rule, shape, budget):
    counts, longer = _counted(models, distribution, rule, shape, budget)
    assert longer > ROWS / 10, "too few drafts were accepted"
    found, freedom = _g_test(counts, _expected(models[0]))
    assert found < chi2.isf(1e-6, freedom)


def test_a_wrong_q_is_detected(models):
    counts, _ = _counted(models, "iid", "rrs", "3x2", 99, swapped=True)
    found, freedom = _g_test(counts, _expected(models[0]))
    assert found > chi2.isf(1e-6, freedom)
