"""K-SEQ by classes of p / q: of n independent draws the one whose token is most wanted is taken first.

Each draw of a token x in class c passes with probability min(1, p(x) / (rho_c q(x))), whatever others do. The
first that passes in the highest class is accepted. With a_c the mass that passes in a class, and G_c = 1 less
the a of higher classes, class c is taken from with probability G_c^n - (G_c - a_c)^n, that is kappa_c a_c. So
with any rho_c of at least kappa_c no token is accepted more often than p has it, and the residual is p less
what is accepted: exact for all classes and thresholds. One class is K-SEQ; classes of single tokens come to
the optimum where p / q differs much. Here classes are spans of log p / q, all under a cut are one, and of the
cuts the one is taken that accepts most.

Thresholds of K-SEQ by classes, from spans of tokens alone, in compiled code.

Of a span are known its sums of p and q, and the least and greatest p / q. With threshold rho all its tokens
pass where rho is at most the least; else p / max(rho, greatest) of them, which is no more than may.
"""

import math
from typing import NamedTuple

import numba
import numpy as np
import torch

_BISECTION_STEPS, _CUT_STRIDE = 36, 4  # of a bisection; spans between two cuts

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
            if c % _CUT_STRIDE == 0:
                under, common = _shared_threshold(p[r, c:], q[r, c:], least[r, c:], most[r, c:], left, n)
                if under < best:
                    best, shared, cuts[r] = under, common, c
            rho[r, c] = _single_span_threshold(p[r, c], q[r, c], least[r, c], most[r, c], left, n)
            left = max(left - _passing_mass(p[r, c], q[r, c], least[r, c], most[r, c], rho[r, c]), 0.0)
        rho[r, cuts[r] :] = shared
    return rho, cuts


@numba.njit
def _passing_mass(p, q, least, most, rho):
    return q if rho <= least else p / max(rho, most)


@numba.njit
def _acceptance_factor(left, mass, n):
    """What is taken of a mass over the mass, (left^n - (left - mass)^n) / mass, with all its digits."""
    behind, total = max(left - mass, 0.0), 0.0
    for k in range(n):
        total += left ** (n - 1 - k) * behind**k
    return total


@numba.njit
def _single_span_threshold(p, q, least, most, left, n):
    """rho of a span that is a class: of all its tokens, or just enough for its p, or the greatest p / q."""
    if q > 0:
        full = _acceptance_factor(left, q, n)
        if full <= least:
            return max(full, _TINY)
    if p > 0 and left**n > p:
        passing = left - (left**n - p) ** (1 / n)
        enough = p / passing if passing > 0 else n * left ** (n - 1)  # p is lost beside what is left
        if enough >= most:
            return enough
    return max(most, _TINY)


@numba.njit
def _shared_threshold(p, q, least, most, left, n):
    """What is left behind a class of several spans, and its rho, by bisection."""
    low, high, under = 0.0, max(n * left ** (n - 1), _TINY), left
    for halving in range(_BISECTION_STEPS + 1):
        rho = high if halving == 0 else (low + high) / 2
        mass = 0.0
        for s in range(len(p)):
            if q[s] > 0:
                mass += _passing_mass(p[s], q[s], least[s], most[s], max(rho, _TINY))
        if mass == 0 or _acceptance_factor(left, mass, n) <= rho * (1 + 1e-15):
            high, under = rho, max(left - mass, 0.0)
        else:
            low = rho
    return under, max(high, _TINY)

_SPANS, _OCTAVES = 64, 8  # of log2 p / q, from n downwards

_ROUNDS = 3


class PriorityPlan(NamedTuple):
    """What is done with the draws of R rows.

    passes    float64 (R, V)  probability that a draw of the token passes
    accepted  float64 (R, V)  probability that the token is accepted
    spans     int64 (R, V)    of each token; lower ones come first
    cut       int64 (R,)      spans from here on are one class
    """

    passes: torch.Tensor
    accepted: torch.Tensor
    spans: torch.Tensor
    cut: torch.Tensor


def priority_plan(p: torch.Tensor, q: torch.Tensor, n: int) -> PriorityPlan:
    """Of p and q float64 (R, V), normalised, and n draws."""
    drawn = q > 0
    ratio = torch.where(drawn, p / torch.where(drawn, q, 1.0), 0.0).nan_to_num(0.0)
    places = (math.log2(n) - ratio.log2()) * ((_SPANS - 2) / _OCTAVES) + 1
    spans = places.clamp(0, _SPANS - 1).long()
    rho, cut = _span_thresholds(torch.where(drawn, p, 0.0), q, ratio, spans, n)
    for _ in range(_ROUNDS):  # each is exact, and accepts no less than the one before
        passing = torch.minimum(q, p / rho.gather(1, spans))
        factor = _acceptance_factors(rho.new_zeros(rho.shape).scatter_add_(1, spans, passing), cut, n)
        rho = torch.minimum(rho, factor).clamp_min(1e-300)
    passes = torch.where(drawn, passing / torch.where(drawn, q, 1.0), 0.0)
    return PriorityPlan(passes, passing * factor.gather(1, spans), spans, cut)


def _span_thresholds(p, q, ratio, spans, n):
    """rho (R, spans) and the cut (R,), from what each span holds."""
    empty = p.new_zeros(len(p), _SPANS)
    held_p, held_q = empty.scatter_add(1, spans, p), empty.scatter_add(1, spans, q)
    inside = torch.where(q > 0, ratio, torch.inf)
    least = torch.full_like(empty, torch.inf).scatter_reduce_(1, spans, inside, "amin")
    most = empty.scatter_reduce(1, spans, ratio, "amax")
    found = thresholds(*(x.cpu().numpy() for x in (held_p, held_q, least, most)), n)
    return tuple(torch.from_numpy(x).to(p.device) for x in found)


def _acceptance_factors(mass, cut, n):
    """kappa (R, spans) of the mass (R, spans) that passes."""
    spans = torch.arange(mass.shape[1], device=mass.device)
    classes = torch.minimum(spans.expand_as(mass), cut[:, None])
    own = torch.zeros_like(mass).scatter_add_(1, classes, mass)
    behind = (1 - own.cumsum(1)).clamp_min(0)
    before = behind + own
    share = sum(before ** (n - 1 - k) * behind**k for k in range(n))  # (before^n - behind^n) / own
    return share.gather(1, classes)


def by_priority(tokens: torch.Tensor, made: PriorityPlan) -> torch.Tensor:
    """Candidates int64 (R, n) in the order in which they are asked: by class, then as drawn."""
    spans = made.spans.gather(1, tokens.clamp_min(0))
    classes = torch.minimum(spans, made.cut[:, None])
    return tokens.gather(1, classes.sort(dim=1, stable=True).indices)
