"""Acceptance of rules that subtract a multiple of q from p, by sums over tokens sorted by p / q.

After rejections the residual of recursive rejection is (p - k q)+ divided by its mass N(k), also without
replacement: k grows by N(k) / m, m being the mass of q that is left. All candidates are rejected with
probability N of the last k, which depends on the rejected tokens alone, so estimates sample only these.

Compiled functions take tokens sorted by p / q: ``ratio`` and ``q`` (m,); ``sum_p`` and ``sum_q`` (m + 1,)
over the tokens before each; ``over_p`` and ``over_q`` (m + 1,) over it and all after. Their cost does not
grow with the vocabulary.
"""

import numba
import numpy as np


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
def sample_without_replacement(uniforms, sum_q, q):
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
def recursive_acceptance(uniforms, q, sum_p, sum_q, ratio, over_p, over_q):
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


class SortedByRatio:
    """Tokens with q > 0 sorted by p / q, with prefix and suffix sums (m + 1,) of p and q.

    Tokens with q = 0 come last. Both sums are stored because their difference would cancel.
    """

    def __init__(self, p: np.ndarray, q: np.ndarray):
        support = np.flatnonzero(q)
        self.order = support[np.argsort(p[support] / q[support])]
        self.p, self.q = p[self.order], q[self.order]
        self.ratio = self.p / self.q
        self.sum_p, self.sum_q = (np.append(0.0, np.cumsum(x)) for x in (self.p, self.q))
        self.over_p, self.over_q = (np.append(np.cumsum(x[::-1])[::-1], 0.0) for x in (self.p, self.q))
        self.over_p += p[q == 0].sum()
        self.over = self.ratio, self.over_p, self.over_q

    def mass(self, k: np.ndarray) -> np.ndarray:
        """Return N(k), the sum of (p - k q)+."""
        at = np.searchsorted(self.ratio, k, side="right")
        return np.maximum(self.over_p[at] - k * self.over_q[at], 0.0)


def independent(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Acceptance of recursive rejection for n independent candidates."""
    tokens, k = SortedByRatio(p, q), 0.0
    for _ in range(n):
        k = k + tokens.mass(k)
    return float(1 - tokens.mass(k))


def one_threshold(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Acceptance of K-SEQ: rho beta = 1 - N(rho)."""
    tokens, low, high = SortedByRatio(p, q), 1.0, float(n)
    for _ in range(60):
        rho = (low + high) / 2
        at = np.searchsorted(tokens.ratio, rho)
        one_minus_beta = tokens.sum_q[at] - tokens.sum_p[at] / rho  # 1 - beta
        low, high = (low, rho) if tokens.mass(rho) < one_minus_beta**n else (rho, high)
    return float(1 - tokens.mass(high))


def estimates(rule: str, p: np.ndarray, q: np.ndarray, n: int, paths: int, seed: int) -> np.ndarray:
    """Return unbiased estimates (paths,) of the acceptance of rrs or greedy without replacement."""
    tokens, uniforms = SortedByRatio(p, q), np.random.default_rng(seed).random((paths, n))
    if rule == "rrs":
        return recursive_acceptance(uniforms, tokens.q, tokens.sum_p, tokens.sum_q, *tokens.over)
    # rule greedy: p of all but the last, and min(p, q) of the last
    sampled = sample_without_replacement(uniforms[:, :-1], tokens.sum_q, tokens.q)
    scale = 1 / (1 - tokens.q[sampled].sum(-1))
    at = np.searchsorted(tokens.ratio, scale)
    last_accepted = tokens.sum_p[at] + scale * tokens.over_q[at]
    counted_twice = np.minimum(tokens.p[sampled], scale[:, None] * tokens.q[sampled])
    return tokens.p[sampled].sum(-1) + last_accepted - counted_twice.sum(-1)
