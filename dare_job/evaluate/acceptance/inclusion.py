"""Acceptance of the naive rule for any number of candidates that are all different.

It accepts with probability sum over tokens x of p_x Pr[x is a candidate]. With w = p q and e_k the
elementary symmetric polynomials, both distributions need D_k = sum over x of w_x e_k(all tokens but x).
Adding a token y updates D_k += b_y D_(k-1) + w_y e_k and e_k += b_y e_(k-1): sums of positive terms, which
keep full precision.

For sampling without replacement, token i arrives at a random time of rate q_i, and x is among the first n
with probability q_x times the integral of e^-t sum_(k < n) e_k(b_i, i not x), b_i = e^(q_i t) - 1. As in
``optimum.py`` k = 0 and 1 have closed forms, the others are integrated by the trapezoid rule in log t, and
light tokens are added together through power sums.

p and q are float64 (V,) with sum 1 and more than n tokens in the support of q.
"""

import numba
import numpy as np

from dare_job.evaluate.acceptance import optimum
from dare_job.evaluate.acceptance.optimum import complements

_STEP = 0.125  # of log t; halving it changes rates of up to eight candidates by less than 1e-14


def sequential(p: np.ndarray, q: np.ndarray, n: int, step: float = _STEP) -> float:
    """Acceptance of n candidates without replacement under the naive rule; exact to 1e-12."""
    support = np.flatnonzero(q)
    p, q = p[support], q[support]
    weights = p * q
    total = weights.sum()
    if n > 1:
        largest, second = int(np.argmax(q)), q / complements(q)
        rest = second.copy()
        rest[largest] = 0
        others_sum = rest.sum() + second[largest] - second
        others_sum[largest] = rest.sum()
        total += weights @ others_sum
    if n > 2:
        times = optimum.quadrature_times(q, n, step)
        total += step * (times * _sums(q, weights, times, n)[2:].sum(0)).sum()
    return float(total)


def distinct(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Acceptance of n independent candidates conditioned on being distinct, under the naive rule; exact to
    rounding.

    q is scaled so that e_n is at least 1, which avoids underflow.
    """
    support = np.flatnonzero(q)
    p, q = p[support], q[support]
    q = q / np.exp(np.log(np.partition(q, len(q) - n)[-n:]).mean())
    e, d = _symmetric(q, p * q, n)
    return float(d[n - 1] / e[n])


def _sums(q: np.ndarray, weights: np.ndarray, times: np.ndarray, n: int) -> np.ndarray:
    """Return e^-t D_k, (n, T), for k below n and each time."""
    heavy = q * times[-1] > optimum.LIGHT
    e, d = _of_heavy(q[heavy], weights[heavy], times, n)
    light, light_weights, coefficients = q[~heavy], weights[~heavy], optimum.coefficients(n)
    powers = light ** np.arange(optimum.POWERS + 1)[:, None]
    for each in (e, d):
        optimum.add_light(each, times, powers.sum(-1), coefficients)
    time_powers = times ** np.arange(optimum.POWERS + 1)[:, None]
    weighted = coefficients @ ((powers @ light_weights)[:, None] * time_powers)  # sums of weights times b^j
    for k in range(n):
        d[k] += sum((-1) ** j * weighted[j] * e[k - j] for j in range(k + 1))
    return d * np.exp(-light.sum() * times)


@numba.njit(cache=True)
def _of_heavy(q, weights, times, n):
    """Return e_k and D_k, (n, T) each, of tokens q (m,), times e^(-t sum(q)) to avoid overflow."""
    e, d = np.zeros((n, len(times))), np.zeros((n, len(times)))
    e[0] = 1
    for i in range(len(q)):
        for m in range(len(times)):
            absent, arrived = np.exp(-q[i] * times[m]), -np.expm1(-q[i] * times[m])
            for k in range(n - 1, 0, -1):
                d[k, m] = absent * (d[k, m] + weights[i] * e[k, m]) + arrived * d[k - 1, m]
                e[k, m] = absent * e[k, m] + arrived * e[k - 1, m]
            d[0, m] = absent * (d[0, m] + weights[i] * e[0, m])
            e[0, m] *= absent
    return e, d


@numba.njit(cache=True)
def _symmetric(q, weights, n):
    """Return e_k and D_k, (n + 1,) each."""
    e, d = np.zeros(n + 1), np.zeros(n + 1)
    e[0] = 1
    for i in range(len(q)):
        for k in range(n, 0, -1):
            d[k] += q[i] * d[k - 1] + weights[i] * e[k]
            e[k] += q[i] * e[k - 1]
        d[0] += weights[i]
    return e, d
