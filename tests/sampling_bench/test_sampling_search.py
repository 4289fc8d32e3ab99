"""The search over draft trees finds what trying all of them finds."""

from collections.abc import Iterator

import numpy as np
import pytest

from dare_job.evaluate.acceptance.tree_search import expected_tokens, fastest, largest, nodes_of

LEVELS, CANDIDATES, NODES = 4, 7, 22


def all_trees(nodes: int, levels: int, candidates: int) -> Iterator[tuple[int, ...]]:
    """Widths of all trees, none at all among them."""
    yield ()
    if levels:
        for width in range(1, min(candidates, nodes) + 1):
            yield from ((width, *rest) for rest in all_trees(nodes // width - 1, levels - 1, candidates))


def measured(seed: int, rising: bool) -> np.ndarray:
    """Rates by level and candidates; where they do not rise with candidates no tree need be monotonic."""
    found = np.random.default_rng(seed).random((LEVELS, CANDIDATES))
    return np.sort(found, 1) if rising else found


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_it_finds_the_tree_that_writes_most(seed, rising):
    rates = measured(seed, rising)
    trees = list(all_trees(NODES, LEVELS, CANDIDATES))
    assert len(trees) == len(set(trees)) > 100 and max(map(nodes_of, trees)) <= NODES
    for limit in range(NODES + 1):
        within = [tree for tree in trees if nodes_of(tree) <= limit]
        found = largest(rates, limit)
        assert nodes_of(found.widths) <= limit
        assert found.tokens == pytest.approx(expected_tokens(rates, found.widths), rel=1e-12)
        assert found.tokens == pytest.approx(max(expected_tokens(rates, tree) for tree in within), rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_it_finds_the_fastest_tree(seed):
    rates, rng = measured(seed, seed % 2 == 0), np.random.default_rng(100 + seed)
    target = np.cumsum(np.append(5, rng.exponential(0.3, NODES)))
    drafter = np.append(0, np.cumsum(rng.exponential(0.5, LEVELS)))

    def speed(tree):
        return expected_tokens(rates, tree) / (target[nodes_of(tree)] + drafter[len(tree)])

    found = fastest(rates, NODES, target, drafter)
    assert found.tokens_per_ms == pytest.approx(speed(found.widths), rel=1e-12)
    best = max(map(speed, all_trees(NODES, LEVELS, CANDIDATES)))
    assert found.tokens_per_ms == pytest.approx(best, rel=1e-12)


def test_levels_may_be_limited_and_of_equals_the_smallest_is_taken():
    rates = np.full((3, 4), 0.5)  # more candidates are worth nothing
    assert largest(rates, 30).widths == (1, 1, 1)
    assert largest(rates, 30, depth=2).widths == (1, 1)
    assert largest(rates, 0).widths == () and largest(rates, 0).tokens == 1
    assert largest(np.zeros((2, 2)), 10).widths == ()
    dear = np.array([1.0, 10, 20])
    assert fastest(rates, 2, dear, np.zeros(4)).widths == ()
