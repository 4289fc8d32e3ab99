"""Which tree ``k1xk2x...`` is best, by dynamic programming on measured acceptance.

Rate a[j][k] is the probability that one of a node's k candidates on level j is accepted, given that its path
was so far. It is taken to hang on j and k alone, whatever the widths of other levels. A step then writes

    E(k1, ..., kd) = 1 + a[1][k1] + a[1][k1] a[2][k2] + ... + a[1][k1] ... a[d][kd]

tokens on average. Below a node on level j - 1 that has n nodes under it, of which the next level are k:

    best[j][n] = max over k that divide n:  1 + a[j][k] best[j + 1][n / k - 1]

which is exact, as a subtree's best does not hang on what is above it. ``largest`` maximises E within a node
limit. ``fastest`` maximises E over the step's time: the target's, by the tree's nodes, and the drafter's, by
its levels; of each number of nodes and levels only the tree with the greatest E can be that.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dare_job.errors import ConfigError


class BestTree(NamedTuple):
    """widths: none for no tree at all; tokens: expected of a step, its own included; ms: what it takes."""

    widths: tuple[int, ...]
    tokens: float
    ms: float = 1.0

    @property
    def tokens_per_ms(self) -> float:
        return self.tokens / self.ms


def expected_tokens(rates: np.ndarray, widths: tuple[int, ...]) -> float:
    """E of widths; rates float64 (levels, candidates): a[j][k] in [j - 1, k - 1]."""
    passed = np.cumprod([rates[level, width - 1] for level, width in enumerate(widths)])
    return 1.0 + float(passed.sum())


def nodes_of(widths: tuple[int, ...]) -> int:
    return int(np.cumprod(widths).sum()) if widths else 0


def largest(rates: np.ndarray, nodes: int, depth: int | None = None) -> BestTree:
    """The tree of at most so many nodes and levels with the greatest E; of equals the smallest.

    Raises ConfigError for rates that are no probabilities.
    """
    return _best(_trees(rates, nodes, depth))


def fastest(rates: np.ndarray, nodes: int, target_ms: np.ndarray, draft_ms: np.ndarray,
            depth: int | None = None) -> BestTree:
    """The tree with the most tokens a millisecond, which may be none at all.

    target_ms  float64 (nodes + 1,): of the target's forward over a root and n draft nodes, n from 0
    draft_ms   float64 (levels + 1,): of drafting d levels, d from 0
    """
    return _best(tree._replace(ms=float(target_ms[nodes_of(tree.widths)] + draft_ms[len(tree.widths)]))
                 for tree in _trees(rates, nodes, depth))


def _best(trees: Iterator[BestTree]) -> BestTree:
    """They come with few levels and nodes first."""
    best = None
    for tree in trees:
        if best is None or tree.tokens_per_ms > best.tokens_per_ms * (1 + 1e-12):
            best = tree
    return best


def _trees(rates: np.ndarray, nodes: int, depth: int | None) -> Iterator[BestTree]:
    """Of each number of levels and nodes that a tree can have, the one with the greatest E."""
    if rates.ndim != 2 or not ((rates >= 0) & (rates <= 1)).all():
        raise ConfigError("acceptance rates must be probabilities by level and number of candidates")
    if nodes < 0:
        raise ConfigError(f"a tree of at most {nodes} nodes: the limit must be from 0")
    yield BestTree((), 1.0)
    for levels in range(1, min(nodes, len(rates) if depth is None else min(depth, len(rates))) + 1):
        value, chosen = _leaf(nodes), []
        for level in range(levels, 0, -1):
            value, choice = _above(rates[level - 1], value)
            chosen.insert(0, choice)
        for count in np.flatnonzero(value > 0):
            yield BestTree(_widths(chosen, int(count)), float(value[count]))


def _leaf(nodes: int) -> np.ndarray:
    value = np.full(nodes + 1, -np.inf)
    value[0] = 1.0
    return value


def _above(rates: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and widths (nodes + 1,) of a node with n nodes under it, by the values of its children."""
    value, choice = np.full(len(below), -np.inf), np.zeros(len(below), int)
    for under in np.flatnonzero(below > 0):
        for width in range(1, min(len(rates), (len(below) - 1) // (under + 1)) + 1):
            count, found = width * (under + 1), 1.0 + rates[width - 1] * below[under]
            if found > value[count]:
                value[count], choice[count] = found, width
    return value, choice


def _widths(chosen: list[np.ndarray], count: int) -> tuple[int, ...]:
    widths = []
    for choice in chosen:
        widths.append(int(choice[count]))
        count = count // widths[-1] - 1
    return tuple(widths)
