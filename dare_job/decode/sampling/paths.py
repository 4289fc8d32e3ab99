"""Draws without replacement in compiled code, in a time that does not grow with the vocabulary.

The tokens are in order of p / q. ``ratio`` and ``q`` are of each, (m,); ``sum_p`` and ``sum_q`` of those
before it, ``over_p`` and ``over_q`` of it and those behind, (m + 1,).
"""

import numba
import numpy as np


@numba.njit(cache=True)
def _at(sum_q, q, gone, count, target):
    """The token where the sum of q, without ``count`` tokens of ``gone`` (rising), passes the target."""
    for g in range(count):
        if target >= sum_q[gone[g]]:
            target += q[gone[g]]
    return min(np.searchsorted(sum_q, target, side="right") - 1, len(q) - 1)


@numba.njit(cache=True)
def _put(gone, count, token):
    at = count
    while at > 0 and gone[at - 1] > token:
        gone[at] = gone[at - 1]
        at -= 1
    gone[at] = token


@numba.njit(cache=True)
def sequential(uniforms, sum_q, q):
    """Tokens (paths, n), one after the other without replacement."""
    out, gone = np.empty(uniforms.shape, np.int64), np.empty(uniforms.shape[1], np.int64)
    for path in range(len(out)):
        left = sum_q[-1]
        for j in range(out.shape[1]):
            token = _at(sum_q, q, gone, j, uniforms[path, j] * left)
            _put(gone, j, token)
            left -= q[token]
            out[path, j] = token
    return out


@numba.njit(cache=True)
def rejected(uniforms, ratio, q, sum_p, sum_q, over_p, over_q):
    """Acceptance (paths,) of recursive rejection, given the tokens rejected, which are drawn."""
    out, gone, n = np.empty(len(uniforms)), np.empty(uniforms.shape[1], np.int64), uniforms.shape[1]
    for path in range(len(out)):
        k, owed, left = 0.0, 1.0, 1.0
        for j in range(n):
            low, old = np.searchsorted(ratio, k), k
            k += owed / left
            high = np.searchsorted(ratio, k)
            owed = max(over_p[high] - k * over_q[high], 0.0)
            if owed == 0 or j + 1 == n:
                break
            lower = (k - old) * (sum_q[low] - 1 + left)  # weights q (k - max(old k, ratio))+
            total = lower + k * (sum_q[high] - sum_q[low]) - (sum_p[high] - sum_p[low])
            target = uniforms[path, j] * total
            if target < lower:
                token = _at(sum_q, q, gone, j, target / (k - old))
            else:
                token = _passing(sum_p, sum_q, k, low, high, target - lower)
            _put(gone, j, token)
            left -= q[token]
        out[path] = 1 - owed
    return out


@numba.njit(cache=True)
def _passing(sum_p, sum_q, k, low, high, target):
    """The token from low up to high where the sum of k q - p passes the target."""
    start, end = low, high - 1
    while start < end:
        middle = (start + end) // 2
        if k * (sum_q[middle + 1] - sum_q[low]) - (sum_p[middle + 1] - sum_p[low]) > target:
            end = middle
        else:
            start = middle + 1
    return start
