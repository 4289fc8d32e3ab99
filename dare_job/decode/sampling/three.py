"""Acceptance of three candidates without replacement: sums over the two before the last.

All that the first of two, x, means to the second is q_x: what is left of q is all that rules ask of it
(``rejection.py``). So the sum over both is one over x of a function of q_x, and this a sum over the second:
one pass over the tokens by rising q, along which what is left falls and all that is looked up moves one way.
The function is had of each of the heaviest tokens, and interpolated between the others. There the second sum
would hold the first token once more, and is lessened by it.

p and q are float64 (V,) and sum to 1. What is found is exact to some 1e-11.
"""

from collections.abc import Callable

import numba
import numpy as np

from dare_job.decode.sampling import inclusion
from dare_job.decode.sampling.interpolated import summed
from dare_job.decode.sampling.race import left_of
from dare_job.decode.sampling.rejection import Sorted

_HEAVY = 8  # tokens for themselves: of any other one q is at most 1 / 9


def sequential(p: np.ndarray, q: np.ndarray) -> float:
    """Of recursive rejection of draws one after the other."""
    tokens = Sorted(p, q)
    rising, first = Rising(tokens), float(tokens.mass(1.0))
    if first == 0 or len(rising.q) <= 3:
        return 1.0 if first == 0 else float(tokens.p.sum())

    def second(own, place):
        left = 1 - own if place < 0 else rising.left[place]
        return _rejected(own, place, first, left, rising.rests(own, place), rising.q, rising.ratio,
                         tokens.ratio, tokens.over_p, tokens.over_q)

    return 1 - rising.summed(second, rising.q * np.maximum(1 - rising.ratio, 0))


def greedy(p: np.ndarray, q: np.ndarray) -> float:
    """Of the greedy rule for draws one after the other: it judges the last, the others come from the
    residual."""
    tokens = Sorted(p, q)
    rising = Rising(tokens)
    if len(rising.q) <= 3:
        return float(tokens.p.sum())

    def second(own, place):
        left = 1 - own if place < 0 else rising.left[place]
        return _missed(own, place, left, rising.rests(own, place), rising.q, rising.ratio, rising.left,
                       tokens.ratio, tokens.over_p, tokens.over_q)

    light = slice(0, rising.light)
    own, left = rising.q[light], rising.left[light]
    twice = own**3 * 2 / left * np.minimum(rising.ratio[light], 1 / (1 - 2 * own))
    return inclusion.sequential(p, q, 2) + 1 - (rising.summed(second, rising.q) - float(twice.sum()))


class Rising:
    """Tokens by rising q: q, p, p / q and 1 - q, each (m,). All but the heaviest few are ``light``."""

    def __init__(self, tokens: Sorted):
        by_q = np.argsort(tokens.q, kind="stable")
        self.q, self.p, self.ratio = tokens.q[by_q], tokens.p[by_q], tokens.ratio[by_q]
        self.left, self.light = left_of(self.q), max(len(self.q) - _HEAVY, 0)
        self._left_of_two = self.q[:-2].sum()

    def rests(self, own: float, place: int) -> np.ndarray:
        """What is left without a first token and each other, (m,), with all its digits; place -1: of a light
        one."""
        found = (1 - own if place < 0 else self.left[place]) - self.q
        found[-1] = self.left[-1] - own
        if place >= len(self.q) - 2:
            found[-2:] = self._left_of_two  # of the other one; nobody asks for its own
        return found

    def summed(self, second: Callable[[float, int], float], weights: np.ndarray) -> float:
        """The sum over the first token with weights (m,); ``second`` takes its q and its place, -1 of light
        ones."""
        found = sum(weights[x] * second(self.q[x], x) for x in range(self.light, len(self.q))
                    if weights[x] > 0)
        some = np.flatnonzero(weights[: self.light] > 0)
        return float(found) + summed(lambda own: second(own, -1), self.q[some], weights[some])


@numba.njit(cache=True)
def _rejected(own, place, first, left, rests, q, ratios, ratio, over_p, over_q):
    """Probability that the second and the last are rejected behind the first; ratio, over_p and over_q by
    rising p / q, all else by rising q."""
    scale, total = 1 + first / left, 0.0
    start = at = np.searchsorted(ratio, scale, side="right")
    owed = over_p[at] - scale * over_q[at]
    if owed <= 0:
        return 0.0
    for i in range(len(q)):
        if i == place or ratios[i] >= scale:
            continue
        last = scale + owed / rests[i]
        while at < len(ratio) and ratio[at] <= last:
            at += 1
        still = max(over_p[at] - last * over_q[at], 0.0)
        total += q[i] * (scale - max(1.0, ratios[i])) * min(still / owed, 1.0)
    if place < 0:
        last = scale + owed / (left - own)
        at = start + np.searchsorted(ratio[start:], last, side="right")
        total -= own * (scale - 1) * min(max(over_p[at] - last * over_q[at], 0.0) / owed, 1.0)
    return total / first


@numba.njit(cache=True)
def _missed(own, place, left, rests, q, ratios, lefts, ratio, over_p, over_q):
    """What the last misses of p, and of the two before it what it would be accepted with: of both orders of
    the two, as the first and the second are what the law is told apart by."""
    at, total = 0, 0.0
    for i in range(len(q)):
        if i == place:
            continue
        scale = 1 / rests[i]
        while at < len(ratio) and ratio[at] <= scale:
            at += 1
        owed = max(over_p[at] - scale * over_q[at], 0.0)
        total += q[i] * (owed / left + (1 / left + 1 / lefts[i]) * q[i] * min(ratios[i], scale))
    if place < 0:
        scale = 1 / (left - own)
        at = np.searchsorted(ratio, scale, side="right")
        total -= own * max(over_p[at] - scale * over_q[at], 0.0) / left
    return total
