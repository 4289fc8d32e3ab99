"""Acceptance of recursive rejection of draws one after the other without replacement.

Behind a path of rejected tokens (p - k q)+ is owed, N in sum, and the next k is k + N / m, m what is left of
q (``rejection.py``). Token x is rejected then with probability q_x (next k - max(k, p_x / q_x))+ / N. p, q
float64 (V,) sum to 1, and more than n tokens have q; what is found is exact to 1e-9.

Sums over very many tokens of a function of one number, which costs too much to be had of each.

Sums over candidates without replacement, one inside another, where all that a token means to those behind
it is its q: what is left of q is all that the law of the next one asks of it.

So an inner sum is a function of the q of the tokens before. It is had of each of the heaviest tokens, and
interpolated between the others, the light ones. There the inner sum runs over these once more, and whoever
sums takes them off.
"""

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from dare_job.evaluate.acceptance.rejection import SortedByRatio

_MAX_DIRECT = 5  # points: the function is had of each

_ERROR_SHARE = 0.1  # of what may be missed: how wrong the function's values may be

_NODES = np.linspace(0, 1, 5)

_QUARTIC = np.linalg.inv(np.vander(_NODES, increasing=True))  # its coefficients, by its values there

_PARABOLA = np.array([[3, 6, -1], [-1, 6, 3]]) / 8  # its values at 1/4 and 3/4, by those at 0, 1/2 and 1


def weighted_sum(function: Callable[[float, float], float], x: np.ndarray, weights: np.ndarray,
           miss: float) -> float:
    """The sum of weights times the function of x; x float64 (N,) rises, weights (N,) are not negative.

    function  of x, and of how wrong it may be
    miss      of an interval: by how much its sum may be wrong

    Of x in an interval the function is a quartic through five points where a parabola through three comes
    near enough to the other two; else the interval is halved. The quartic is nearer still.
    """
    known, total, waiting = {}, 0.0, [(0, len(x))] if len(x) else []

    def value(at, weight):
        if at not in known:
            known[at] = function(at, _ERROR_SHARE * miss / weight)
        return known[at]

    while waiting:
        low, high = waiting.pop()
        start, width, weight = x[low], x[high - 1] - x[low], weights[low:high].sum()
        if width == 0:
            total += value(start, weight) * weight
            continue
        if high - low <= _MAX_DIRECT:
            total += sum(value(x[i], weights[i]) * weights[i] for i in range(low, high))
            continue
        values = np.array([value(start + width * place, weight) for place in _NODES])
        if np.abs(values[1::2] - _PARABOLA @ values[::2]).max() * weight > miss:
            middle = low + int(np.searchsorted(x[low:high], start + width / 2))
            waiting += [(low, middle), (middle, high)]
            continue
        at = np.vander((x[low:high] - start) / width, 5, increasing=True)
        total += float(weights[low:high] @ (at @ (_QUARTIC @ values)))
    return float(total)

HEAVY = 8  # tokens for themselves, more than a path has

TOLERANCE = 1e-9  # of the sum over an interval of light tokens, or of a heavy one


class Token(NamedTuple):
    """Of a path: its q, and its place among the tokens, -1 of a light one."""

    q: float
    place: int


Path = tuple[Token, ...]


class SortedByQ:
    """Tokens by rising q: q, p and p / q, each (m,). All but the heaviest few are ``light``."""

    def __init__(self, tokens: SortedByRatio):
        by_q = np.argsort(tokens.q, kind="stable")
        self.q, self.p, self.ratio = tokens.q[by_q], tokens.p[by_q], tokens.ratio[by_q]
        self.light = max(len(self.q) - HEAVY, 0)
        self._heavy, self._tail = self.q[self.light :], float(self.q[: self.light].sum())
        self._others = 1 - np.eye(len(self._heavy))

    def left(self, path: Path) -> float:
        """1 less the q of a path: a sum of what is heavy, so that it keeps its digits."""
        heavy, light = self._left(path)
        return float(heavy.sum() + light)

    def lefts_of_heavy(self, path: Path) -> np.ndarray:
        """1 less the q of a path and of each heavy token, by rising q; 0 of the path's own."""
        heavy, light = self._left(path)
        return np.where(heavy > 0, self._others @ heavy + light, 0.0)

    def _left(self, path: Path) -> tuple[np.ndarray, float]:
        heavy, light = self._heavy.copy(), self._tail
        for token in path:
            if token.place < 0:
                light -= token.q
            else:
                heavy[token.place - self.light] = 0
        return heavy, light

    def lefts(self, path: Path) -> np.ndarray:
        """1 less the q of a path and of each token (m,)."""
        found = self.left(path) - self.q
        found[self.light :] = self.lefts_of_heavy(path)
        return found

    def summed(self, function: Callable[[Token, float], float], weights: np.ndarray,
               miss: float = TOLERANCE) -> float:
        """The sum of a function of a token, and of how wrong it may be, with weights (m,)."""
        heavy = sum(weights[x] * function(Token(self.q[x], x), miss / weights[x])
                    for x in range(self.light, len(self.q)) if weights[x] > 0)
        some = np.flatnonzero(weights[: self.light] > 0)
        return float(heavy) + weighted_sum(lambda q, wrong: function(Token(q, -1), wrong), self.q[some],
                                     weights[some], miss)


def sequential(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Of n candidates; from the third on each takes tens of times as long as the one before."""
    return 1 - _rejections(SortedByRatio(p, q), n)((), 0.0, 1.0, TOLERANCE)


def _rejections(tokens: SortedByRatio, n: int) -> Callable[[Path, float, float, float], float]:
    """Of a path, k, N, and how wrong it may be: the probability that all behind it are rejected."""
    rising = SortedByQ(tokens)

    def rejected(path, scale, owed, miss):
        after = scale + owed / rising.left(path)
        still = float(tokens.mass(after))
        if still == 0 or miss >= 1 or len(path) == n - 1:
            return min(still / owed, 1.0)
        if len(path) == n - 2:
            found = _last(scale, after, owed, still, rising.left(path), rising.lefts_of_heavy(path), rising.q,
                          rising.ratio, tokens.ratio, tokens.over_p, tokens.over_q)
        else:
            weights = rising.q * np.maximum(after - np.maximum(scale, rising.ratio), 0) / owed
            weights[[token.place for token in path if token.place >= 0]] = 0
            found = rising.summed(lambda token, wrong: rejected((*path, token), after, still, wrong), weights,
                                  miss)
        twice = [(token, token.q * (after - scale) / owed) for token in path if token.place < 0]
        return found - sum(weight * rejected((*path, token), after, still, miss / weight)
                           for token, weight in twice)

    return rejected


@numba.njit(cache=True)
def _last(scale, after, owed, still, left, lefts, q, ratios, ratio, over_p, over_q):
    """The sum over the last but one of the probability that it is rejected times what is owed behind the last
    / ``still``. q and p / q by rising q, the last three arrays by rising p / q; lefts: of heavy tokens."""
    at, total, light = 0, 0.0, len(q) - len(lefts)
    for i in range(len(q)):
        rest = left - q[i] if i < light else lefts[i - light]
        if rest > 0 and ratios[i] < after:
            last = after + still / rest
            while at < len(ratio) and ratio[at] <= last:
                at += 1
            missed = max(over_p[at] - last * over_q[at], 0.0)
            total += q[i] * (after - max(scale, ratios[i])) * min(missed / still, 1.0)
    return total / owed
