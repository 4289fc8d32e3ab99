"""Priority verification: K-SEQ with one threshold per class of p / q.

Of n independent candidates, the candidate in the highest class that passes is accepted. A candidate x of
class c passes with probability min(1, p(x) / (rho_c q(x))), independently of the others. With a_c the mass
that passes in class c and G_c = 1 minus the a of higher classes, class c is accepted with probability G_c^n -
(G_c - a_c)^n = kappa_c a_c. For any rho_c >= kappa_c no token is accepted more often than p allows, and the
residual is p minus the accepted mass: the rule is exact for all classes and thresholds.

One class is K-SEQ (Sun et al., arXiv 2310.15141). Here classes are spans of log p / q; all spans from a cut
on form one class, and the cut with the largest acceptance is chosen. Thresholds are computed from the sums of
p and q and the range of p / q in each span.
"""

import math
from typing import NamedTuple

import numba
import numpy as np
import torch

_BISECTION_STEPS, _CUT_STRIDE = 36, 4  # of a bisection; spans between two cuts
_TINY = 1e-300  # in place of a threshold of 0
_SPANS, _OCTAVES = 64, 8  # of log2 p / q, from n downwards
_ROUNDS = 3  # of refinement


@numba.njit(cache=True)
def thresholds(p, q, min_ratio, max_ratio, n):
    """Compute thresholds rho (R, S) and the cut (R,) per row; the spans from the cut on form one class.

    Spans before the cut are classes of their own. Of all cuts, the one with the largest acceptance is chosen.

    Parameters
    ----------
    p, q : float64 (R, S)
        Mass of each span.
    min_ratio, max_ratio : float64 (R, S)
        Range of p / q in each span.
    n
        Number of candidates.
    """
    rows, spans = p.shape
    rho, cuts = np.empty((rows, spans)), np.zeros(rows, np.int64)
    for r in range(rows):
        remaining, lowest, shared = 1.0, 2.0, 0.0  # remaining: 1 minus the mass that passed before
        for c in range(spans):
            if c % _CUT_STRIDE == 0:
                rest, common_rho = _shared_threshold(p[r, c:], q[r, c:], min_ratio[r, c:], max_ratio[r, c:],
                                                     remaining, n)
                if rest < lowest:
                    lowest, shared, cuts[r] = rest, common_rho, c
            span = p[r, c], q[r, c], min_ratio[r, c], max_ratio[r, c]
            rho[r, c] = _single_span_threshold(*span, remaining, n)
            remaining = max(remaining - _passing_mass(*span, rho[r, c]), 0.0)
        rho[r, cuts[r] :] = shared
    return rho, cuts


@numba.njit
def _passing_mass(p, q, min_ratio, max_ratio, rho):
    """Return a lower bound on the mass that passes at threshold rho, exact if rho <= min_ratio."""
    return q if rho <= min_ratio else p / max(rho, max_ratio)


@numba.njit
def _acceptance_factor(remaining, mass, n):
    """Return kappa = (remaining^n - (remaining - mass)^n) / mass without cancellation."""
    rest, total = max(remaining - mass, 0.0), 0.0
    for k in range(n):
        total += remaining ** (n - 1 - k) * rest**k
    return total


@numba.njit
def _single_span_threshold(p, q, min_ratio, max_ratio, remaining, n):
    """Return rho of a span that is a class: all its tokens pass, or just enough for its p, or max p / q."""
    if q > 0:
        factor = _acceptance_factor(remaining, q, n)
        if factor <= min_ratio:
            return max(factor, _TINY)
    if p > 0 and remaining**n > p:
        passing = remaining - (remaining**n - p) ** (1 / n)
        # Without passing mass, p underflows against the remaining mass.
        enough = p / passing if passing > 0 else n * remaining ** (n - 1)
        if enough >= max_ratio:
            return enough
    return max(max_ratio, _TINY)


@numba.njit
def _shared_threshold(p, q, min_ratio, max_ratio, remaining, n):
    """Return the mass that remains after one class of several spans, and its rho, by bisection."""
    low, high, rest = 0.0, max(n * remaining ** (n - 1), _TINY), remaining
    for halving in range(_BISECTION_STEPS + 1):
        rho = high if halving == 0 else (low + high) / 2
        mass = 0.0
        for s in range(len(p)):
            if q[s] > 0:
                mass += _passing_mass(p[s], q[s], min_ratio[s], max_ratio[s], max(rho, _TINY))
        if mass == 0 or _acceptance_factor(remaining, mass, n) <= rho * (1 + 1e-15):
            high, rest = rho, max(remaining - mass, 0.0)
        else:
            low = rho
    return rest, max(high, _TINY)


class PriorityPlan(NamedTuple):
    """Acceptance probabilities of n candidates, per row.

    Attributes
    ----------
    passes : float64 (R, V)
        Probability that a candidate with this token passes.
    accepted : float64 (R, V)
        Probability that the token is accepted.
    spans : int64 (R, V)
        Span of each token; lower spans have priority.
    cut : int64 (R,)
        The spans from here on form one class.
    """

    passes: torch.Tensor
    accepted: torch.Tensor
    spans: torch.Tensor
    cut: torch.Tensor


def priority_plan(p: torch.Tensor, q: torch.Tensor, n: int) -> PriorityPlan:
    """Compute the plan for normalised p and q float64 (R, V) and n independent candidates."""
    proposed = q > 0
    ratio = torch.where(proposed, p / torch.where(proposed, q, 1.0), 0.0).nan_to_num(0.0)
    positions = (math.log2(n) - ratio.log2()) * ((_SPANS - 2) / _OCTAVES) + 1
    spans = positions.clamp(0, _SPANS - 1).long()
    rho, cut = _span_thresholds(torch.where(proposed, p, 0.0), q, ratio, spans, n)
    for _ in range(_ROUNDS):  # every round is exact and accepts at least as much as the previous one
        passing = torch.minimum(q, p / rho.gather(1, spans))
        factors = _acceptance_factors(rho.new_zeros(rho.shape).scatter_add_(1, spans, passing), cut, n)
        rho = torch.minimum(rho, factors).clamp_min(_TINY)
    passes = torch.where(proposed, passing / torch.where(proposed, q, 1.0), 0.0)
    return PriorityPlan(passes, passing * factors.gather(1, spans), spans, cut)


def _span_thresholds(p, q, ratio, spans, n):
    """Return rho (R, S) and the cut (R,)."""
    empty = p.new_zeros(len(p), _SPANS)
    span_p, span_q = empty.scatter_add(1, spans, p), empty.scatter_add(1, spans, q)
    ratios = torch.where(q > 0, ratio, torch.inf)
    min_ratio = torch.full_like(empty, torch.inf).scatter_reduce_(1, spans, ratios, "amin")
    max_ratio = empty.scatter_reduce(1, spans, ratio, "amax")
    result = thresholds(*(x.cpu().numpy() for x in (span_p, span_q, min_ratio, max_ratio)), n)
    return tuple(torch.from_numpy(x).to(p.device) for x in result)


def _acceptance_factors(mass, cut, n):
    """Return kappa (R, S) of the passing mass (R, S)."""
    spans = torch.arange(mass.shape[1], device=mass.device)
    classes = torch.minimum(spans.expand_as(mass), cut[:, None])
    class_mass = torch.zeros_like(mass).scatter_add_(1, classes, mass)
    after = (1 - class_mass.cumsum(1)).clamp_min(0)
    before = after + class_mass
    factor = sum(before ** (n - 1 - k) * after**k for k in range(n))  # (before^n - after^n) / class_mass
    return factor.gather(1, classes)


def by_priority(tokens: torch.Tensor, plan: PriorityPlan) -> torch.Tensor:
    """Sort candidates int64 (R, n) into verification order: by class, then in sampling order."""
    spans = plan.spans.gather(1, tokens.clamp_min(0))
    classes = torch.minimum(spans, plan.cut[:, None])
    return tokens.gather(1, classes.sort(dim=1, stable=True).indices)
