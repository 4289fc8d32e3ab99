"""Acceptance under rules that keep a multiple of q from p, by sums over the tokens in order of p / q.

Behind rejections what recursive rejection owes is (p - k q)+ up to its mass N(k), also of draws without
replacement: k grows by N(k) / m, m being what is left of q. So all candidates are rejected with probability N
of the last k, over the tokens that were rejected: these, and nothing else of the vocabulary, are random.

Draws without replacement in compiled code, in a time that does not grow with the vocabulary.

The tokens are in order of p / q. ``ratio`` and ``q`` are of each, (m,); ``sum_p`` and ``sum_q`` of those
before it, ``over_p`` and ``over_q`` of it and those behind, (m + 1,).
"""

import numba
import numpy as np


@numba.njit(cache=True)
def _token_at(sum_q, q, gone, count, target):
    """The token where the sum of q, without ``count`` tokens of ``gone`` (rising), passes the target."""
    for g in range(count):
        if target >= sum_q[gone[g]]:
            target += q[gone[g]]
    return min(np.searchsorted(sum_q, target, side="right") - 1, len(q) - 1)


@numba.njit(cache=True)
def _insert(gone, count, token):
    at = count
    while at > 0 and gone[at - 1] > token:
        gone[at] = gone[at - 1]
        at -= 1
    gone[at] = token


@numba.njit(cache=True)
def sample_without_replacement(uniforms, sum_q, q):
    """Tokens (paths, n), one after the other without replacement."""
    out, gone = np.empty(uniforms.shape, np.int64), np.empty(uniforms.shape[1], np.int64)
    for path in range(len(out)):
        left = sum_q[-1]
        for j in range(out.shape[1]):
            token = _token_at(sum_q, q, gone, j, uniforms[path, j] * left)
            _insert(gone, j, token)
            left -= q[token]
            out[path, j] = token
    return out


@numba.njit(cache=True)
def recursive_acceptance(uniforms, ratio, q, sum_p, sum_q, over_p, over_q):
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
                token = _token_at(sum_q, q, gone, j, target / (k - old))
            else:
                token = _token_in_span(sum_p, sum_q, k, low, high, target - lower)
            _insert(gone, j, token)
            left -= q[token]
        out[path] = 1 - owed
    return out


@numba.njit(cache=True)
def _token_in_span(sum_p, sum_q, k, low, high, target):
    """The token from low up to high where the sum of k q - p passes the target."""
    start, end = low, high - 1
    while start < end:
        middle = (start + end) // 2
        if k * (sum_q[middle + 1] - sum_q[low]) - (sum_p[middle + 1] - sum_p[low]) > target:
            end = middle
        else:
            start = middle + 1
    return start


class SortedByRatio:
    """Tokens with q by rising p / q, and sums (m + 1,): of p and q before each, and of all behind.

    Tokens without q stand behind all. Both sums are kept for the digits that a difference would lose.
    """

    def __init__(self, p: np.ndarray, q: np.ndarray):
        inside = np.flatnonzero(q)
        self.order = inside[np.argsort(p[inside] / q[inside])]
        self.p, self.q = p[self.order], q[self.order]
        self.ratio = self.p / self.q
        self.sum_p, self.sum_q = (np.append(0.0, np.cumsum(x)) for x in (self.p, self.q))
        self.over_p, self.over_q = (np.append(np.cumsum(x[::-1])[::-1], 0.0) for x in (self.p, self.q))
        self.over_p += p[q == 0].sum()

    def mass(self, k: np.ndarray) -> np.ndarray:
        """N(k), the sum of (p - k q)+."""
        at = np.searchsorted(self.ratio, k, side="right")
        return np.maximum(self.over_p[at] - k * self.over_q[at], 0.0)


def independent(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Of recursive rejection of n independent draws."""
    tokens, k = SortedByRatio(p, q), 0.0
    for _ in range(n):
        k = k + tokens.mass(k)
    return float(1 - tokens.mass(k))


def one_threshold(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Of K-SEQ: rho beta, 1 - N(rho)."""
    tokens, low, high = SortedByRatio(p, q), 1.0, float(n)
    for _ in range(60):
        rho = (low + high) / 2
        at = np.searchsorted(tokens.ratio, rho)
        missed = tokens.sum_q[at] - tokens.sum_p[at] / rho  # 1 - beta
        low, high = (low, rho) if tokens.mass(rho) < missed**n else (rho, high)
    return float(1 - tokens.mass(high))


def estimates(rule: str, p: np.ndarray, q: np.ndarray, n: int, paths: int, seed: int) -> np.ndarray:
    """Unbiased estimates (paths,) of what rrs or greedy accepts of n draws one after the other."""
    tokens, uniforms = SortedByRatio(p, q), np.random.default_rng(seed).random((paths, n))
    if rule == "rrs":
        return recursive_acceptance(
            uniforms, tokens.ratio, tokens.q, tokens.sum_p, tokens.sum_q, tokens.over_p, tokens.over_q
        )
    drawn = sample_without_replacement(uniforms[:, :-1], tokens.sum_q, tokens.q)
    scale = 1 / (1 - tokens.q[drawn].sum(-1))  # the greedy rule: all but the last, and the least of two
    at = np.searchsorted(tokens.ratio, scale)
    shared = tokens.sum_p[at] + scale * tokens.over_q[at]
    twice = np.minimum(tokens.p[drawn], scale[:, None] * tokens.q[drawn])
    return tokens.p[drawn].sum(-1) + shared - twice.sum(-1)
