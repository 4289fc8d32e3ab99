"""Acceptance of recursive rejection of draws one after the other without replacement.

Behind a path of rejected tokens (p - k q)+ is owed, N in sum, and the next k is k + N / m, m what is left of
q (``rejection.py``). Token x is rejected then with probability q_x (next k - max(k, p_x / q_x))+ / N. p, q
float64 (V,) sum to 1, and more than n tokens have q; what is found is exact to 1e-9.
"""

from collections.abc import Callable

import numba
import numpy as np

from dare_job.decode.sampling.rejection import Sorted
from dare_job.decode.sampling.rising import MISS, Path, Rising


def sequential(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Of n candidates; from the third on each takes tens of times as long as the one before."""
    return 1 - _rejections(Sorted(p, q), n)((), 0.0, 1.0, MISS)


def _rejections(tokens: Sorted, n: int) -> Callable[[Path, float, float, float], float]:
    """Of a path, k, N, and how wrong it may be: the probability that all behind it are rejected."""
    rising = Rising(tokens)

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
