"""The search over draft trees finds what trying all of them finds."""

from collections.abc import Iterator

import numpy as np
import pytest

from dare_job.bench.sampling.tree_search import fastest

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


def expected_tokens(rates: np.ndarray, widths: tuple[int, ...]) -> float:
    return 1 + float(np.cumprod([rates[level, width - 1] for level, width in enumerate(widths)]).sum())


@pytest.mark.parametrize("seed", range(6))
def test_it_finds_the_fastest_tree(seed):
    rates, rng = measured(seed, seed % 2 == 0), np.random.default_rng(100 + seed)
    target = np.cumsum(np.append(5, rng.exponential(0.3, NODES)))
    drafter = np.append(0, np.cumsum(rng.exponential(0.5, LEVELS)))

    def speed(tree):
        return expected_tokens(rates, tree) / (target[sum(np.cumprod(tree, dtype=int))] + drafter[len(tree)])

    found = fastest(rates, NODES, target, drafter)
    assert found.tokens_per_ms == pytest.approx(speed(found.widths), rel=1e-12)
    best = max(map(speed, all_trees(NODES, LEVELS, CANDIDATES)))
    assert found.tokens_per_ms == pytest.approx(best, rel=1e-12)


def test_the_smallest_of_equal_trees_is_taken():
    rates, free = np.full((3, 4), 0.5), np.zeros(4)  # more candidates gain nothing
    assert fastest(rates, 30, np.ones(31), free).widths == (1, 1, 1)
    assert fastest(rates, 0, np.ones(1), free).widths == ()
    assert fastest(np.zeros((2, 2)), 10, np.ones(11), free).widths == ()
    assert fastest(rates, 2, np.array([1.0, 10, 20]), free).widths == ()
