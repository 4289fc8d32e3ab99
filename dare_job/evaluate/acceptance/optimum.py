"""The highest acceptance rate of any exact rule, for each draft distribution (Hu et al., arXiv 2502.18779).

It is 1 + min over token sets H of P(H) - Q(H), where Q(H) is the probability that all candidates are in H.
For independent, sequential and distinct candidates the best set is a prefix of the tokens sorted by p / q.
The functions for Q take q float64 (m,) with sum 1 in the order in which tokens are added to H.

Sampling without replacement (Plackett-Luce): token i arrives at a random time of rate q_i. With b_i = e^(q_i
t) - 1 and l the rate of all tokens outside H, fewer than n tokens of H arrive before any other with
probability l sum_(k < n) of the integral of e^-t e_k(b_i, i in H), e_k being the elementary symmetric
polynomials. It is 1 for k = 0 and the sum of q_i / (1 - q_i) for k = 1; the others are integrated by the
trapezoid rule in log t. Light tokens are added in blocks, through power sums.
"""

import math

import numba
import numpy as np
import torch

from dare_job.decode.sampling.distributions import check_count, distribution_for


def _distinct(q: np.ndarray, n: int) -> np.ndarray:
    """Return Q (m,) for candidates conditioned on being distinct: ratios of symmetric polynomials."""
    sums = _symmetric(q, n)
    return sums / sums[-1]


@numba.njit(cache=True)
def _symmetric(q, n):
    """Return e_n of the first i entries of q, for every i."""
    sums, out = np.zeros(n + 1), np.empty(len(q))
    sums[0] = 1
    for i in range(len(q)):
        for k in range(n, 0, -1):
            sums[k] += q[i] * sums[k - 1]
        out[i] = sums[n]
    return out


_STEP, _LOG_T_MIN = 0.25, -10.0  # of log t; the integrand is below 1e-13 before the minimum
_MAX_RATE_TIME = 40.0  # integrate until e^-40 of the slowest part remains
POWERS = 6  # of q t, for light tokens, where q t is at most LIGHT
LIGHT = 0.1  # at the last time; a tenth of that where the integrand matters
_BLOCK, _SLACK = 64, 1e-13


def _min_difference(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Return the minimum of P - Q over prefixes, at most 0; p, q float64 (m,) sorted by p / q, m > n.

    Q is convex in the cumulative q, so blocks that cannot hold the minimum are found from their ends.
    """
    sums, mass = np.cumsum(p), np.cumsum(q)
    ends = np.append(np.arange(_BLOCK - 1, len(q) - 1, _BLOCK), len(q) - 1)
    containment = _sequential(q, n, ends)
    best = min(0.0, (sums[ends] - containment).min())
    chord = np.interp(mass, np.append(0, mass[ends]), np.append(0, containment))
    refine = np.unique(np.append(np.flatnonzero(sums - chord < best - _SLACK), len(q) - 1))
    return min(best, (sums[refine] - _sequential(q, n, refine)).min())


def _sequential(q: np.ndarray, n: int, ends: np.ndarray) -> np.ndarray:
    """Return Q (E,) of the prefixes up to each of ``ends``, ascending to m - 1, for n candidates; m > n."""
    outside_mass = np.append(np.cumsum(q[:0:-1])[::-1], 0.0)[ends]
    if n == 1:
        return 1 - outside_mass
    arrived_sum = 1 + np.cumsum(q / complements(q))[ends]
    if n > 2:
        times = quadrature_times(q, n, _STEP)
        heavy = q * times[-1] > LIGHT
        remaining = q[~heavy].sum() + np.append(np.cumsum(q[heavy][::-1])[::-1], 0.0)
        arrived_sum += _integrals(q, heavy, remaining, times, n, ends, coefficients(n))
    return 1 - outside_mass * arrived_sum


def complements(q: np.ndarray) -> np.ndarray:
    """Return 1 - q (m,) without cancellation where one token has nearly all mass."""
    complement, largest = 1 - q, int(np.argmax(q))
    complement[largest] = q[:largest].sum() + q[largest + 1 :].sum()
    return complement


def quadrature_times(q: np.ndarray, n: int, step: float) -> np.ndarray:
    """Return times (T,), equally spaced in log t; after the last, n tokens have arrived up to e^-40."""
    slowest = np.partition(q, len(q) - n + 1)[: len(q) - n + 1].sum()
    return np.exp(np.arange(_LOG_T_MIN, np.log(_MAX_RATE_TIME / slowest) + step, step))


def coefficients(n: int) -> np.ndarray:
    """Return the coefficients of z^m in (e^z - 1)^j, (n, POWERS + 1), for m up to POWERS and j below n."""
    first = np.array([0.0] + [1 / math.factorial(m) for m in range(1, POWERS + 1)])
    rows = [np.eye(POWERS + 1)[0]]
    for _ in range(n - 1):
        rows.append(np.convolve(rows[-1], first)[: POWERS + 1])
    return np.array(rows)


@numba.njit(cache=True)
def _integrals(q, heavy, remaining, times, n, ends, coefficients):
    """Sum over 1 < k < n of the integral of e^-t e_k of the tokens up to each end.

    e_k is stored times e^(-t h), h the mass of the heavy tokens so far, to avoid overflow. ``remaining`` is 1
    - h before each heavy token and after the last.
    """
    e, out, moments = np.zeros((n, len(times))), np.empty(len(ends)), np.zeros(POWERS + 1)
    e[0] = 1
    weights, weights_for = np.empty(len(times)), -1
    heavy_added, start, pending = 0, 0, False
    for at in range(len(ends)):
        for i in range(start, ends[at] + 1):
            if not heavy[i]:
                power = 1.0
                for m in range(1, POWERS + 1):
                    power *= q[i]
                    moments[m] += power
                pending = True
                continue
            heavy_added += 1
            _add_heavy(e, np.exp(-q[i] * times))
        if pending:
            add_light(e, times, moments, coefficients)
            moments[:], pending = 0, False
        start = ends[at] + 1
        if weights_for != heavy_added:
            weights, weights_for = _STEP * times * np.exp(-remaining[heavy_added] * times), heavy_added
        total = 0.0
        for k in range(2, n):
            total += np.sum(weights * e[k])
        out[at] = total
    return out


@numba.njit
def _add_heavy(e, absent):
    """Add one token that has not arrived with probability ``absent`` at each time."""
    for k in range(len(e) - 1, 0, -1):
        for m in range(len(absent)):
            e[k, m] = e[k, m] * absent[m] + e[k - 1, m] * (1 - absent[m])
    e[0] *= absent


@numba.njit(cache=True)
def add_light(e, times, moments, coefficients):
    """Add light tokens given their power sums ``moments``, by Newton's identities."""
    n = len(e)
    powers, light_polynomials = np.empty(n), np.empty(n)
    for m in range(len(times)):
        for j in range(1, n):
            powers[j], time = 0.0, 1.0
            for d in range(1, len(moments)):
                time *= times[m]
                powers[j] += coefficients[j, d] * moments[d] * time
        light_polynomials[0] = 1.0
        for k in range(1, n):
            total, sign = 0.0, 1.0
            for j in range(1, k + 1):
                total += sign * light_polynomials[k - j] * powers[j]
                sign = -sign
            light_polynomials[k] = total / k
        for k in range(n - 1, 0, -1):
            for j in range(1, k + 1):
                e[k, m] += light_polynomials[j] * e[k - j, m]


def optimum(distribution: str, p: torch.Tensor, q: torch.Tensor, n: int) -> float:
    """Return the optimum for p, q float32 (V,), exact to rounding; ``without_replacement``: about 1e-12."""
    check_count(distribution_for(distribution), n)
    p, q = (np.asarray(x, np.float64) for x in (p, q))
    p, q = p / p.sum(), q / q.sum()
    if distribution in ("top_k", "greedy", "spechub"):
        return _fixed_but_one(distribution, p, q, n)
    support = np.flatnonzero(q)
    if distribution != "iid" and len(support) <= n:
        return float(p[support].sum())
    order = support[np.argsort(p[support] / q[support])]
    p, q = p[order], q[order]
    if distribution == "without_replacement":
        return float(1 + _min_difference(p, q, n))
    containment = np.cumsum(q) ** n if distribution == "iid" else _distinct(q, n)
    return float(1 + min(0.0, (np.cumsum(p) - containment).min()))


def most_probable(q: np.ndarray, n: int) -> np.ndarray:
    """Return the n most probable tokens of q (V,), int64 (n,) or all with q > 0 if they are fewer.

    Ties are in token order, as the distributions break them.
    """
    if n >= np.count_nonzero(q):
        return np.flatnonzero(q)
    threshold = np.partition(q, len(q) - n)[len(q) - n] if n else np.inf
    above = np.flatnonzero(q > threshold)
    return np.append(above, np.flatnonzero(q == threshold)[: n - len(above)])


def _fixed_but_one(distribution: str, p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Return the optimum with at most one random candidate.

    The deterministic candidates are accepted in full, and min(p, q) of the rest. SpecHub's pairs hold the
    argmax and one of the rest, like those of greedy.
    """
    deterministic = n if distribution == "top_k" else n - 1
    best = most_probable(q, deterministic)
    rest = q.copy()
    rest[best] = 0
    mass = rest.sum()
    shared = np.minimum(p, rest / mass).sum() if distribution != "top_k" and mass > 0 else 0.0
    return float(p[best].sum() + shared)
