"""Estimates of the acceptance of many candidates without replacement, each from one sampled path of tokens.

With recursive rejection the probability that all candidates are rejected depends on the rejected tokens alone
(``closed_forms.py``), so only these are sampled. The greedy rule needs a sample of all candidates but the
last.

Compiled functions take tokens sorted by p / q: ``ratio`` and ``q`` (m,); ``sum_p`` and ``sum_q`` (m + 1,)
over the tokens before each; ``over_p`` and ``over_q`` (m + 1,) over it and all after. The cost of a path does
not grow with the vocabulary.
"""

import numba
import numpy as np

from dare_job.evaluate.acceptance.closed_forms import SortedByRatio


@numba.njit(cache=True)
def _token_at(sum_q, q, used, count, target):
    """Return the token at which the sum of q, without the ``count`` used (ascending), passes the target."""
    for g in range(count):
        if target >= sum_q[used[g]]:
            target += q[used[g]]
    return min(np.searchsorted(sum_q, target, side="right") - 1, len(q) - 1)


@numba.njit(cache=True)
def _insert(used, count, token):
    at = count
    while at > 0 and used[at - 1] > token:
        used[at] = used[at - 1]
        at -= 1
    used[at] = token


@numba.njit(cache=True)
def _sampled(uniforms, sum_q, q):
    """Sample tokens (paths, n) without replacement from uniforms (paths, n)."""
    out, used = np.empty(uniforms.shape, np.int64), np.empty(uniforms.shape[1], np.int64)
    for path in range(len(out)):
        remaining = sum_q[-1]
        for j in range(out.shape[1]):
            token = _token_at(sum_q, q, used, j, uniforms[path, j] * remaining)
            _insert(used, j, token)
            remaining -= q[token]
            out[path, j] = token
    return out


@numba.njit(cache=True)
def _recursive_acceptance(uniforms, q, sum_p, sum_q, ratio, over_p, over_q):
    """Return the acceptance (paths,) of recursive rejection given sampled rejected tokens."""
    out, used, n = np.empty(len(uniforms)), np.empty(uniforms.shape[1], np.int64), uniforms.shape[1]
    for path in range(len(out)):
        k, residual, remaining = 0.0, 1.0, 1.0
        for j in range(n):
            low, previous_k = np.searchsorted(ratio, k), k
            k += residual / remaining
            high = np.searchsorted(ratio, k)
            residual = max(over_p[high] - k * over_q[high], 0.0)
            if residual == 0 or j + 1 == n:
                break
            lower = (k - previous_k) * (sum_q[low] - 1 + remaining)  # weights q (k - max(previous_k, ratio))+
            total = lower + k * (sum_q[high] - sum_q[low]) - (sum_p[high] - sum_p[low])
            target = uniforms[path, j] * total
            if target < lower:
                token = _token_at(sum_q, q, used, j, target / (k - previous_k))
            else:
                token = _token_in_span(sum_p, sum_q, k, low, high, target - lower)
            _insert(used, j, token)
            remaining -= q[token]
        out[path] = 1 - residual
    return out


@numba.njit(cache=True)
def _token_in_span(sum_p, sum_q, k, low, high, target):
    """Return the token from low up to high at which the cumulative k q - p passes the target."""
    start, end = low, high - 1
    while start < end:
        middle = (start + end) // 2
        if k * (sum_q[middle + 1] - sum_q[low]) - (sum_p[middle + 1] - sum_p[low]) > target:
            end = middle
        else:
            start = middle + 1
    return start


def without_replacement(rule: str, p: np.ndarray, q: np.ndarray, n: int, paths: int, seed: int) -> np.ndarray:
    """Return unbiased estimates (paths,) of the acceptance of rrs or greedy without replacement."""
    tokens, uniforms = SortedByRatio(p, q), np.random.default_rng(seed).random((paths, n))
    if rule == "rrs":
        return _recursive_acceptance(uniforms, tokens.q, tokens.sum_p, tokens.sum_q, *tokens.over)
    # rule greedy: p of all but the last, and min(p, q) of the last
    sampled = _sampled(uniforms[:, :-1], tokens.sum_q, tokens.q)
    scale = 1 / (1 - tokens.q[sampled].sum(-1))
    at = np.searchsorted(tokens.ratio, scale)
    last_accepted = tokens.sum_p[at] + scale * tokens.over_q[at]
    counted_twice = np.minimum(tokens.p[sampled], scale[:, None] * tokens.q[sampled])
    return tokens.p[sampled].sum(-1) + last_accepted - counted_twice.sum(-1)
