"""Acceptance of recursive rejection for candidates without replacement, by nested sums over tokens.

After a path of rejected tokens the residual is (p - k q)+ with mass N, and the next k is k + N / m, m being
the mass of q that is left (``closed_forms.py``). Token x is then rejected with probability
q_x (next k - max(k, p_x / q_x))+ / N. A token influences later candidates only through its q, so an inner sum
is a function of the q of the tokens before. It is evaluated for each of the heaviest tokens and interpolated
over the others, the light ones; a light token's inner sum includes the token itself, and the caller subtracts
it.

p and q are float64 (V,) with sum 1 and more than n tokens in the support of q. Results are exact to 1e-9.
"""

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from dare_job.evaluate.acceptance.closed_forms import SortedByRatio

HEAVY = 8  # tokens handled one by one; more than a path is long
TOLERANCE = 1e-9  # of the sum over an interval of light tokens, or for a heavy token
_MAX_DIRECT = 5  # evaluate every point up to this many
_ERROR_SHARE = 0.1  # share of the tolerance for errors of the function's values
_NODES = np.linspace(0, 1, 5)
_QUARTIC = np.linalg.inv(np.vander(_NODES, increasing=True))  # maps values at the nodes to coefficients
_PARABOLA = np.array([[3, 6, -1], [-1, 6, 3]]) / 8  # maps values at 0, 1/2, 1 to those at 1/4, 3/4


def weighted_sum(function: Callable[[float, float], float], x: np.ndarray, weights: np.ndarray,
                 tolerance: float) -> float:
    """Return the sum of weights times function(x), by adaptive interpolation.

    On an interval the function is interpolated by a quartic through five points. The interval is halved
    unless the parabola through three of them is close enough to the other two.

    Parameters
    ----------
    function
        Takes x and the allowed error of its value.
    x : float64 (N,)
        Ascending.
    weights : (N,)
        Not negative.
    tolerance
        Allowed error of the sum over an interval.
    """
    cache, total, intervals = {}, 0.0, [(0, len(x))] if len(x) else []

    def value(at, weight):
        if at not in cache:
            cache[at] = function(at, _ERROR_SHARE * tolerance / weight)
        return cache[at]

    while intervals:
        low, high = intervals.pop()
        start, width, weight = x[low], x[high - 1] - x[low], weights[low:high].sum()
        if width == 0:
            total += value(start, weight) * weight
            continue
        if high - low <= _MAX_DIRECT:
            total += sum(value(x[i], weights[i]) * weights[i] for i in range(low, high))
            continue
        values = np.array([value(start + width * place, weight) for place in _NODES])
        if np.abs(values[1::2] - _PARABOLA @ values[::2]).max() * weight > tolerance:
            middle = low + int(np.searchsorted(x[low:high], start + width / 2))
            intervals += [(low, middle), (middle, high)]
            continue
        at = np.vander((x[low:high] - start) / width, 5, increasing=True)
        total += float(weights[low:high] @ (at @ (_QUARTIC @ values)))
    return float(total)


class Token(NamedTuple):
    """A token of a path: its q, and its index among the tokens, or -1 for a light one."""

    q: float
    place: int


Path = tuple[Token, ...]


class SortedByQ:
    """Tokens sorted by q: q, p and p / q, each (m,). All but the heaviest few are ``light``."""

    def __init__(self, tokens: SortedByRatio):
        by_q = np.argsort(tokens.q, kind="stable")
        self.q, self.p, self.ratio = tokens.q[by_q], tokens.p[by_q], tokens.ratio[by_q]
        self.light = max(len(self.q) - HEAVY, 0)
        self._heavy, self._tail = self.q[self.light :], float(self.q[: self.light].sum())
        self._others = 1 - np.eye(len(self._heavy))

    def remaining(self, path: Path) -> float:
        """Return 1 minus the q of a path, without cancellation."""
        heavy, light = self._masses(path)
        return float(heavy.sum() + light)

    def remaining_after_heavy(self, path: Path) -> np.ndarray:
        """Return 1 minus the q of a path and of each heavy token, (heavy,), by ascending q.

        The path's own tokens have 0.
        """
        heavy, light = self._masses(path)
        return np.where(heavy > 0, self._others @ heavy + light, 0.0)

    def _masses(self, path: Path) -> tuple[np.ndarray, float]:
        heavy, light = self._heavy.copy(), self._tail
        for token in path:
            if token.place < 0:
                light -= token.q
            else:
                heavy[token.place - self.light] = 0
        return heavy, light

    def remaining_after(self, path: Path) -> np.ndarray:
        """Return 1 minus the q of a path and of each token, (m,)."""
        remaining = self.remaining(path) - self.q
        remaining[self.light :] = self.remaining_after_heavy(path)
        return remaining

    def weighted_sum(self, function: Callable[[Token, float], float], weights: np.ndarray,
                     tolerance: float = TOLERANCE) -> float:
        """Return the sum over tokens of weights (m,) times a function of a token and of the allowed error."""
        heavy = sum(weights[x] * function(Token(self.q[x], x), tolerance / weights[x])
                    for x in range(self.light, len(self.q)) if weights[x] > 0)
        positive = np.flatnonzero(weights[: self.light] > 0)
        return float(heavy) + weighted_sum(lambda q, error: function(Token(q, -1), error), self.q[positive],
                                           weights[positive], tolerance)


def sequential(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Acceptance of n candidates; from the third on each costs tens of times as much as the one before."""
    return 1 - _rejections(SortedByRatio(p, q), n)((), 0.0, 1.0, TOLERANCE)


def _rejections(tokens: SortedByRatio, n: int) -> Callable[[Path, float, float, float], float]:
    """Return a function of path, k, N, tolerance: the probability that all later candidates are rejected."""
    tokens_by_q = SortedByQ(tokens)

    def rejected(path, scale, residual, tolerance):
        after = scale + residual / tokens_by_q.remaining(path)
        rest = float(tokens.mass(after))
        if rest == 0 or tolerance >= 1 or len(path) == n - 1:
            return min(rest / residual, 1.0)
        if len(path) == n - 2:
            total = _last(scale, after, residual, rest, tokens_by_q.remaining(path),
                          tokens_by_q.remaining_after_heavy(path), tokens_by_q.q, tokens_by_q.ratio,
                          *tokens.over)
        else:
            weights = tokens_by_q.q * np.maximum(after - np.maximum(scale, tokens_by_q.ratio), 0) / residual
            weights[[token.place for token in path if token.place >= 0]] = 0
            total = tokens_by_q.weighted_sum(
                lambda token, error: rejected((*path, token), after, rest, error), weights, tolerance
            )
        counted_twice = [(token, token.q * (after - scale) / residual) for token in path if token.place < 0]
        return total - sum(weight * rejected((*path, token), after, rest, tolerance / weight)
                           for token, weight in counted_twice)

    return rejected


@numba.njit(cache=True)
def _last(scale, after, residual, next_residual, remaining, remaining_after_heavy, q, ratios, ratio, over_p,
          over_q):
    """Sum over the last candidate but one of its rejection probability times the residual after the last /
    ``next_residual``.

    q and ratios are sorted by q; ratio, over_p and over_q by p / q.
    """
    at, total, light = 0, 0.0, len(q) - len(remaining_after_heavy)
    for i in range(len(q)):
        rest = remaining - q[i] if i < light else remaining_after_heavy[i - light]
        if rest > 0 and ratios[i] < after:
            last = after + next_residual / rest
            while at < len(ratio) and ratio[at] <= last:
                at += 1
            rejected = max(over_p[at] - last * over_q[at], 0.0)
            total += q[i] * (after - max(scale, ratios[i])) * min(rejected / next_residual, 1.0)
    return total / residual
