"""Draft nodes with non-finite logits are result, whatever the tree and wherever they are in it."""

import numpy as np

from dare_job.decode.model.tree import build
from dare_job.decode.sampling import nonfinite
from dare_job.decode.verify.result import VerificationResult
from pools.tree import ROOT, DraftBatch

ROWS, NODES = 40, 13


def trees(rng: np.random.Generator) -> DraftBatch:
    parents = np.array([[rng.integers(ROOT, node) for node in range(NODES)] for _ in range(ROWS)], np.int32)
    sizes = rng.integers(0, NODES + 1, ROWS).astype(np.int32)
    tokens = rng.permuted(np.tile(np.arange(100, 100 + NODES, dtype=np.int32), (ROWS, 1)), axis=1)
    return DraftBatch(tokens, parents, sizes, np.ones((ROWS, NODES), np.float32),
                      np.zeros((ROWS, NODES), np.uint8))


def test_finds_exactly_the_nonfinite_nodes():
    rng = np.random.default_rng(0)
    for share in (0.0, 0.1, 0.4, 1.0):
        drafts, bad, asked = trees(rng), rng.random((ROWS, NODES)) < share, []
        there = np.arange(NODES) < drafts.sizes[:, None]
        hopeless = rng.random(ROWS) < 0.2  # non-finite even without drafts
        without = there & ~hopeless[:, None]
        for node in range(NODES):
            up = drafts.parents[:, node]
            without[:, node] &= ~bad[:, node] & ((up == ROOT) | without[np.arange(ROWS), up])

        def has_numbers(keep, bad=bad, hopeless=hopeless, asked=asked):
            asked.append(keep)
            return ~(keep & bad).any(1) & ~hopeless

        broken = (there & bad).any(1) | hopeless
        keep = nonfinite.finite_nodes(drafts, broken, has_numbers)
        assert (keep == without).all()
        assert len(asked) <= 2 + 5 * (there & bad).sum(1).max()
        _is_the_same_tree(drafts, keep)


def _is_the_same_tree(drafts, keep):
    deepest = np.full(ROWS, NODES)
    whole = build(np.arange(ROWS), drafts, deepest)
    some = build(np.arange(ROWS), nonfinite.select_nodes(drafts, keep), deepest)
    there = nonfinite.kept_queries(whole, keep)
    for part in (0, 2):  # tokens and depths
        assert (some.host[part] == whole.host[part][there]).all()
    up = (np.cumsum(there) - 1)[whole.host[1][there]]
    assert (some.host[1] == up).all()


def test_a_path_that_ends_at_a_missing_node_ends_before_it():
    """Its token is the step's own, and queries are indexed as in the forward pass."""
    drafts = DraftBatch(np.array([[7, 8, 9]] * 2, np.int32), np.array([[ROOT, ROOT, 1]] * 2, np.int32),
                        np.array([3, 3], np.int32), np.ones((2, 3), np.float32), np.zeros((2, 3), np.uint8))
    whole = build(np.array([1, 2]), drafts, np.array([4, 4]))
    there = nonfinite.kept_queries(whole, np.array([[True, True, False], [False, True, True]]))
    full = VerificationResult(
        np.array([2, 2]), np.array([[0, 2, 3]] * 2), np.array([[8, 9, 0], [8, 9, 5]], np.int32),
                      np.zeros((2, 3), np.bool_), np.array([False, True]), np.ones(2, np.bool_), True)
    result = nonfinite.restrict_to_queries(full, whole, there)
    assert result.counts.tolist() == [1, 2] and result.finite.tolist() == [True, True]
    assert result.paths[0, :2].tolist() == [0, 2] and result.paths[1].tolist() == [0, 1, 2]
    assert result.tokens[0, :2].tolist() == [8, 9]
