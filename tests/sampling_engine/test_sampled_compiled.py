"""The compiled code samples the same tokens as the tensor code, for all settings."""

import numpy as np
import pytest
import torch

from dare_job.decode.model.tree import build
from dare_job.decode.sampling import tree_verification
from dare_job.decode.sampling.compiled import warp_parameters
from dare_job.decode.settings import Warp
from dare_job.decode.verify.penalty import NO_PENALTY
from pools.tree import ROOT, DraftBatch

ROWS, NODES = 40, 5
SETTINGS = [Warp(), Warp(0), Warp(0.3), Warp(2.5), Warp(0.8, 7), Warp(1.0, 10**6), Warp(1.2, None, 0.8),
            Warp(1.0, None, 0.01), Warp(1.0, None, None, 0.2), Warp(0.9, 40, 0.95, 0.02), Warp(1.0, 1),
            Warp(0.9, None, 0.9999), Warp(1e-6)]
GREEDY = [Warp(0), Warp(1e-6), Warp(1.0, None, 0.01), Warp(1.0, 1)]


def case(vocabulary: int, seed: int = 0, alike: bool = False):
    """Return trees of likely tokens, so that paths are accepted, with some impossible tokens.

    alike: nearly all tokens of one node have the same score.
    """
    rng = np.random.default_rng(seed)
    total = ROWS * (NODES + 1)
    scores = 4 * rng.standard_normal((total, vocabulary)).astype(np.float32)
    scores[:, rng.integers(0, vocabulary, vocabulary // 5)] = -np.inf
    if alike:
        scores[-1, 2:] = scores[-1, :1]
    best = np.argsort(-scores, 1)
    tokens, parents = np.zeros((ROWS, NODES), np.int32), np.zeros((ROWS, NODES), np.int32)
    for row in range(ROWS):  # two children of the root, two of the first, one of the third
        parents[row] = [ROOT, ROOT, 0, 0, 2]
        root = row * (NODES + 1)
        for node, (parent, place) in enumerate(zip(parents[row], (0, 1, 0, 1, 0), strict=True)):
            tokens[row, node] = best[root + parent + 1, place]
    ones = np.ones((ROWS, NODES), np.float32)
    drafts = DraftBatch(tokens, parents, np.full(ROWS, NODES, np.int32), ones, ones.astype(np.uint8))
    return torch.from_numpy(scores), build(np.zeros(ROWS, np.int64), drafts, np.full(ROWS, 9, np.int32))


def uniform_source(seed: int):
    rng = np.random.default_rng(seed)
    table = rng.random(ROWS * (NODES + 1))
    return lambda rows, nodes, count: table[rows * (NODES + 1) + nodes][:, None].repeat(count, 1)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [11, 256, 1000])
def test_equal_to_tensor_code(settings, vocabulary):
    depths = set()
    for seed in range(5):
        scores, tree = case(vocabulary, seed, alike=settings.top_p is None)  # else which are kept is open
        p = tree_verification.Probabilities(scores, settings, lambda queries: None)
        expected = tree_verification.verify_deterministic(tree, p, uniform_source(seed))
        found = tree_verification.verify_deterministic_on_cpu(
            tree, scores.clone(), warp_parameters(settings), NO_PENALTY, uniform_source(seed)
        )
        assert np.array_equal(found.counts, expected.counts) and found.all_finite and expected.all_finite
        for row, count in enumerate(expected.counts):
            assert np.array_equal(found.tokens[row, : count + 1], expected.tokens[row, : count + 1])
            assert np.array_equal(found.paths[row, : count + 1], expected.paths[row, : count + 1])
        depths |= set(expected.counts.tolist())
    assert len(depths) > 1 or settings in GREEDY


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_rows_are_reported(bad):
    scores, tree = case(50)
    scores[6] = bad
    for result in (
        tree_verification.verify_deterministic(
            tree, tree_verification.Probabilities(scores, Warp(), None), uniform_source(0)
        ),
        tree_verification.verify_deterministic_on_cpu(
            tree, scores.clone(), warp_parameters(Warp()), NO_PENALTY, uniform_source(0)
        ),
    ):
        assert not result.all_finite and np.flatnonzero(~result.tree_finite).tolist() == [1]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_extreme_uniforms_sample_possible_tokens(uniform):
    scores, tree = case(300)
    found = tree_verification.verify_deterministic_on_cpu(
        tree,
        scores.clone(),
        warp_parameters(Warp()),
        NO_PENALTY,
        lambda rows, nodes, count: np.full((len(rows), count), uniform),
    )
    ends = tree.starts[:-1] + found.paths[np.arange(ROWS), found.counts]
    assert np.isfinite(scores.numpy()[ends, found.tokens[np.arange(ROWS), found.counts]]).all()
