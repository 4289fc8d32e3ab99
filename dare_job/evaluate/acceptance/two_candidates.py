"""Closed-form acceptance of rules for two candidates.

p and q are float64 (V,) with sum 1 and more than two tokens in the support of q.
"""

import numpy as np

from dare_job.evaluate.acceptance.optimum import complements
from dare_job.evaluate.acceptance.rejection import SortedByRatio


def naive_without_replacement(p: np.ndarray, q: np.ndarray) -> float:
    """Acceptance of the naive rule: p of both candidates, the second sampled from q without the first."""
    odds = q / complements(q)
    largest = int(np.argmax(q))
    others_odds = odds.sum() - odds
    others_odds[largest] = odds[:largest].sum() + odds[largest + 1 :].sum()
    return float((p * q) @ (1 + others_odds))


def naive_distinct(p: np.ndarray, q: np.ndarray) -> float:
    """Acceptance of the naive rule for two independent candidates conditioned on being distinct."""
    first = q * complements(q)
    return float(2 * p @ first / first.sum())


def rrs_distinct(p: np.ndarray, q: np.ndarray) -> float:
    """Acceptance of recursive rejection for the distribution "distinct".

    The first has distribution proportional to q (1 - q), the second q without the first.
    """
    complement = complements(q)
    first = q * complement / (q @ complement)
    rejected, tokens = np.maximum(first - p, 0), SortedByRatio(np.maximum(p - first, 0), q)
    residual, positive = tokens.over_p[0], rejected > 0
    if residual == 0:
        return 1.0
    return float(1 - rejected[positive] @ tokens.mass(residual / complement[positive]) / residual)


def greedy_without_replacement(p: np.ndarray, q: np.ndarray) -> float:
    """Acceptance of the greedy rule: it verifies the second candidate, and emits the first through the
    residual.
    """
    tokens = SortedByRatio(p, q)
    scale = 1 / complements(tokens.q)
    second_accepted = 1 - tokens.mass(scale) - np.minimum(tokens.p, scale * tokens.q)
    return float(tokens.q @ (tokens.p + second_accepted))


def rrs_spechub(p: np.ndarray, q: np.ndarray) -> float:
    """Acceptance of recursive rejection for SpecHub's pairs: a sample and the argmax, or one of the rest."""
    top = int(np.argmax(q))
    rejected, residual, rest = np.maximum(q - p, 0), np.maximum(p - q, 0), np.delete(q, top)
    total, mass = residual.sum(), rest.sum()
    if total == 0:
        return 1.0
    after_top = np.maximum(np.delete(residual, top) - total * rest / mass, 0).sum() if mass > 0 else total
    after_others = total - residual[top]
    return float(1 - (rejected[top] * after_top + np.delete(rejected, top).sum() * after_others) / total)
