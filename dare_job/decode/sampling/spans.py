"""Thresholds of K-SEQ by classes, from spans of tokens alone, in compiled code.

Of a span are known its sums of p and q, and the least and greatest p / q. With threshold rho all its tokens
pass where rho is at most the least; else p / max(rho, greatest) of them, which is no more than may.
"""

import numba
import numpy as np

_HALVINGS, _APART = 36, 4  # of a bisection; spans between two cuts
_TINY = 1e-300  # in place of a threshold of 0


@numba.njit(cache=True)
def thresholds(p, q, least, most, n):
    """rho (R, S) and the cut (R,): spans from there on are one class; arrays float64 (R, S).

    Spans above the cut are classes of their own; of all cuts the one is taken with which most is accepted.
    """
    rows, spans = p.shape
    rho, cuts = np.empty((rows, spans)), np.zeros(rows, np.int64)
    for r in range(rows):
        left, best, shared = 1.0, 2.0, 0.0  # left: 1 less what passed above
        for c in range(spans):
            if c % _APART == 0:
                under, common = _one_class(p[r, c:], q[r, c:], least[r, c:], most[r, c:], left, n)
                if under < best:
                    best, shared, cuts[r] = under, common, c
            rho[r, c] = _own(p[r, c], q[r, c], least[r, c], most[r, c], left, n)
            left = max(left - _passing(p[r, c], q[r, c], least[r, c], most[r, c], rho[r, c]), 0.0)
        rho[r, cuts[r] :] = shared
    return rho, cuts


@numba.njit
def _passing(p, q, least, most, rho):
    return q if rho <= least else p / max(rho, most)


@numba.njit
def _share(left, mass, n):
    """What is taken of a mass over the mass, (left^n - (left - mass)^n) / mass, with all its digits."""
    behind, total = max(left - mass, 0.0), 0.0
    for k in range(n):
        total += left ** (n - 1 - k) * behind**k
    return total


@numba.njit
def _own(p, q, least, most, left, n):
    """rho of a span that is a class: of all its tokens, or just enough for its p, or the greatest p / q."""
    if q > 0:
        full = _share(left, q, n)
        if full <= least:
            return max(full, _TINY)
    if p > 0 and left**n > p:
        passing = left - (left**n - p) ** (1 / n)
        enough = p / passing if passing > 0 else n * left ** (n - 1)  # p is lost beside what is left
        if enough >= most:
            return enough
    return max(most, _TINY)


@numba.njit
def _one_class(p, q, least, most, left, n):
    """What is left behind a class of several spans, and its rho, by bisection."""
    low, high, under = 0.0, max(n * left ** (n - 1), _TINY), left
    for halving in range(_HALVINGS + 1):
        rho = high if halving == 0 else (low + high) / 2
        mass = 0.0
        for s in range(len(p)):
            if q[s] > 0:
                mass += _passing(p[s], q[s], least[s], most[s], max(rho, _TINY))
        if mass == 0 or _share(left, mass, n) <= rho * (1 + 1e-15):
            high, under = rho, max(left - mass, 0.0)
        else:
            low = rho
    return under, max(high, _TINY)
