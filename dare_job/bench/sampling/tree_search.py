"""The fastest tree shape ``k1xk2x...``, by dynamic programming on measured acceptance rates.

Rate a[j][k] is the probability that one of a node's k candidates on level j is accepted, given that its path
was. It is assumed to depend on j and k alone, not on the widths of other levels. A step then generates

    E(k1, ..., kd) = 1 + a[1][k1] + a[1][k1] a[2][k2] + ... + a[1][k1] ... a[d][kd]

tokens on average. For a node on level j - 1 with n descendants, of which the next level are k:

    best[j][n] = max over k that divide n:  1 + a[j][k] best[j + 1][n / k - 1]

This is exact, since the best subtree does not depend on the levels above it. The fastest tree maximises E
over the time of a step: the target's, which depends on the nodes, plus the drafter's, which depends on the
levels. For each number of nodes and levels only the tree with the greatest E can win.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class BestTree(NamedTuple):
    """A tree shape.

    Attributes
    ----------
    widths
        Empty for no tree.
    tokens
        Expected tokens per step, including the target's own.
    ms
        Milliseconds per step.
    """

    widths: tuple[int, ...]
    tokens: float
    ms: float

    @property
    def tokens_per_ms(self) -> float:
        return self.tokens / self.ms


def fastest(rates: np.ndarray, nodes: int, target_ms: np.ndarray, draft_ms: np.ndarray) -> BestTree:
    """Return the tree with the most tokens per millisecond, possibly empty; of ties the smallest.

    Parameters
    ----------
    rates : float64 (levels, candidates)
        A[j][k] at [j - 1, k - 1].
    target_ms : float64 (nodes + 1,)
        Target forward over a root and n draft nodes, from n = 0.
    draft_ms : float64 (levels + 1,)
        Drafting d levels, from d = 0.
    """
    best = BestTree((), 1.0, float(target_ms[0] + draft_ms[0]))
    for widths, tokens in _trees(rates, nodes):
        tree = BestTree(widths, tokens, float(target_ms[np.cumprod(widths).sum()] + draft_ms[len(widths)]))
        if tree.tokens_per_ms > best.tokens_per_ms * (1 + 1e-12):
            best = tree
    return best


def _trees(rates: np.ndarray, nodes: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield widths and E of the best tree for each feasible number of levels and nodes, ascending."""
    for levels in range(1, min(nodes, len(rates)) + 1):
        value, chosen = np.full(nodes + 1, -np.inf), []
        value[0] = 1.0  # of a leaf
        for level in range(levels, 0, -1):
            value, choice = _parent_values(rates[level - 1], value)
            chosen.insert(0, choice)
        for count in np.flatnonzero(value > 0):
            if count:
                yield _widths(chosen, int(count)), float(value[count])


def _parent_values(rates: np.ndarray, children_value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values and widths (nodes + 1,) of a node with n descendants, given its children's values."""
    value, choice = np.full(len(children_value), -np.inf), np.zeros(len(children_value), int)
    for descendants in np.flatnonzero(children_value > 0):
        for width in range(1, min(len(rates), (len(children_value) - 1) // (descendants + 1)) + 1):
            count, better = width * (descendants + 1), 1.0 + rates[width - 1] * children_value[descendants]
            if better > value[count]:
                value[count], choice[count] = better, width
    return value, choice


def _widths(chosen: list[np.ndarray], count: int) -> tuple[int, ...]:
    widths = []
    for choice in chosen:
        widths.append(int(choice[count]))
        count = count // widths[-1] - 1
    return tuple(widths)
