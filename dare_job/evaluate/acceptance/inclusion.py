"""The naive rule's acceptance: the sum over tokens of p times the probability that one is a candidate.

With w = p q and e_k the elementary symmetric polynomials, both laws need D_k, the sum over tokens x of w_x
times e_k of all tokens but x. A token y that is added makes it D_k + b_y D_(k-1) + w_y e_k, and e_k
e_k + b_y e_(k-1): sums of positive terms, so that no digits are lost.

Of draws one after the other, token i arrives at a time of rate q_i, and x is among the first n with
probability q_x times the integral of e^-t times the sum over k < n of e_k(b_i, i not x), b_i = e^(q_i t) - 1.
As in ``race.py`` k = 0 and 1 have closed forms, the others are integrated by the trapezoid rule in log t, and
light tokens go in together, through power sums.

Acceptance of two candidates without replacement: sums over the first. p, q float64 (V,) sum to 1, and more
than two tokens have q; exact to rounding.
"""

import numba
import numpy as np

from dare_job.evaluate.acceptance import optimum
from dare_job.evaluate.acceptance.optimum import complements
from dare_job.evaluate.acceptance.rejection import SortedByRatio

_STEP = 0.125  # of log t: half of it changes rates of up to eight candidates by less than 1e-14


def sequential(p: np.ndarray, q: np.ndarray, n: int, step: float = _STEP) -> float:
    """Of draws one after the other; p, q float64 (V,) sum to 1, more than n tokens have q. Exact to 1e-12."""
    inside = np.flatnonzero(q)
    p, q = p[inside], q[inside]
    weights, others = p * q, optimum.complements(q)
    found = weights.sum()
    if n > 1:
        largest, second = int(np.argmax(q)), q / others
        rest = second.copy()
        rest[largest] = 0
        but_one = rest.sum() + second[largest] - second
        but_one[largest] = rest.sum()
        found += weights @ but_one
    if n > 2:
        times = optimum.quadrature_times(q, n, step)
        found += step * (times * _sums(q, weights, times, n)[2:].sum(0)).sum()
    return float(found)


def distinct(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Of independent draws, given that no two are equal; p and q as above. Exact to rounding.

    In the unit that q is taken in here e_n is at least 1: its digits are not lost below float64's numbers.
    """
    inside = np.flatnonzero(q)
    p, q = p[inside], q[inside]
    q = q / np.exp(np.log(np.partition(q, len(q) - n)[-n:]).mean())
    e, d = _symmetric(q, p * q, n)
    return float(d[n - 1] / e[n])


def _sums(q: np.ndarray, weights: np.ndarray, times: np.ndarray, n: int) -> np.ndarray:
    """e^-t D_k, (n, T): of k below n and each time."""
    heavy = q * times[-1] > optimum.LIGHT
    e, d = _of_heavy(q[heavy], weights[heavy], times, n)
    light, of_light, coefficients = q[~heavy], weights[~heavy], optimum.coefficients(n)
    powers = light ** np.arange(optimum.POWERS + 1)[:, None]
    for each in (e, d):
        optimum.add_light(each, times, powers.sum(-1), coefficients)
    rising = times ** np.arange(optimum.POWERS + 1)[:, None]
    shares = coefficients @ ((powers @ of_light)[:, None] * rising)  # sums of weights times b^j
    for k in range(n):
        d[k] += sum((-1) ** j * shares[j] * e[k - j] for j in range(k + 1))
    return d * np.exp(-light.sum() * times)


@numba.njit(cache=True)
def _of_heavy(q, weights, times, n):
    """e_k and D_k of the tokens q (m,), times e^(-t h), h their sum: nothing overflows. (n, T) each."""
    e, d = np.zeros((n, len(times))), np.zeros((n, len(times)))
    e[0] = 1
    for i in range(len(q)):
        for m in range(len(times)):
            missed, came = np.exp(-q[i] * times[m]), -np.expm1(-q[i] * times[m])
            for k in range(n - 1, 0, -1):
                d[k, m] = missed * (d[k, m] + weights[i] * e[k, m]) + came * d[k - 1, m]
                e[k, m] = missed * e[k, m] + came * e[k - 1, m]
            d[0, m] = missed * (d[0, m] + weights[i] * e[0, m])
            e[0, m] *= missed
    return e, d


@numba.njit(cache=True)
def _symmetric(q, weights, n):
    """e_k and D_k, (n + 1,) each."""
    e, d = np.zeros(n + 1), np.zeros(n + 1)
    e[0] = 1
    for i in range(len(q)):
        for k in range(n, 0, -1):
            d[k] += q[i] * d[k - 1] + weights[i] * e[k]
            e[k] += q[i] * e[k - 1]
        d[0] += weights[i]
    return e, d


def two_distinct(p: np.ndarray, q: np.ndarray) -> float:
    """Of recursive rejection of independent draws that are not equal: the first is of q (1 - q), the second
    of what is left of q."""
    left = complements(q)
    law = q * left / (q @ left)
    rejected, tokens = np.maximum(law - p, 0), SortedByRatio(np.maximum(p - law, 0), q)
    owed, some = tokens.over_p[0], rejected > 0
    if owed == 0:
        return 1.0
    return float(1 - rejected[some] @ tokens.mass(owed / left[some]) / owed)


def greedy(p: np.ndarray, q: np.ndarray) -> float:
    """Of the greedy rule for draws one after the other: it judges the second, the first comes from the
    residual."""
    tokens = SortedByRatio(p, q)
    scale = 1 / complements(tokens.q)
    beside = 1 - tokens.mass(scale) - np.minimum(tokens.p, scale * tokens.q)
    return float(tokens.q @ (tokens.p + beside))


def spechub(p: np.ndarray, q: np.ndarray) -> float:
    """Of recursive rejection of SpecHub's pairs: a draw and the most probable token, or one of the rest."""
    top = int(np.argmax(q))
    rejected, owed, rest = np.maximum(q - p, 0), np.maximum(p - q, 0), np.delete(q, top)
    first, mass = owed.sum(), rest.sum()
    if first == 0:
        return 1.0
    behind_top = np.maximum(np.delete(owed, top) - first * rest / mass, 0).sum() if mass > 0 else first
    behind_others = first - owed[top]
    return float(1 - (rejected[top] * behind_top + np.delete(rejected, top).sum() * behind_others) / first)
