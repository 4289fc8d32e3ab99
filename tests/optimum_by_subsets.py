"""The optimum of any exact rule by enumeration, to compare the closed forms with."""

import itertools

import torch


def by_subsets(p: torch.Tensor, tuples: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Return the optimum for p (V,), of few tokens, and any distribution, from ``enumerate_candidates``."""
    p, best = p.double() / p.double().sum(), 0.0
    for bits in itertools.product((False, True), repeat=len(p)):
        inside = torch.tensor((*bits, True))  # the last: no candidate
        best = min(best, float(p[inside[:-1]].sum() - probabilities[inside[tuples].all(-1)].sum()))
    return 1 + best
