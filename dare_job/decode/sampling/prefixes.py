"""Q of growing sets: the probability that all n candidates are among the first i tokens, for every i.

Each takes q float64 (m,) in the order in which tokens are added, summing to 1, and gives Q (m,). ``race.py``
has that of draws without replacement.
"""

import numba
import numpy as np


def independent(q: np.ndarray, n: int) -> np.ndarray:
    return np.cumsum(q) ** n


def distinct(q: np.ndarray, n: int) -> np.ndarray:
    """Of independent draws, given that no two are equal: shares of elementary symmetric polynomials."""
    sums = _symmetric(q, n)
    return sums / sums[-1]


@numba.njit(cache=True)
def _symmetric(q, n):
    """e_n of the first i of q, for every i."""
    sums, out = np.zeros(n + 1), np.empty(len(q))
    sums[0] = 1
    for i in range(len(q)):
        for k in range(n, 0, -1):
            sums[k] += q[i] * sums[k - 1]
        out[i] = sums[n]
    return out
