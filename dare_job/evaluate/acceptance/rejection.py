"""Acceptance of rules that subtract a multiple of q from p, by sums over tokens sorted by p / q.

After rejections the residual of recursive rejection is (p - k q)+ divided by its mass N(k), also without
replacement: k grows by N(k) / m, m being the mass of q that is left. All candidates are rejected with
probability N of the last k.
"""

import numpy as np


class SortedByRatio:
    """Tokens with q > 0 sorted by p / q, and tokens with q = 0 after them.

    ``ratio``, p and q are (m,). ``sum_p`` and ``sum_q`` (m + 1,) sum over the tokens before each, ``over_p``
    and ``over_q`` over it and all after. Both sums are stored because their difference would cancel.
    """

    def __init__(self, p: np.ndarray, q: np.ndarray):
        support = np.flatnonzero(q)
        order = support[np.argsort(p[support] / q[support])]
        self.p, self.q = p[order], q[order]
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
