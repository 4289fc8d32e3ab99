"""Acceptance of two candidates without replacement: sums over the first. p, q float64 (V,) sum to 1, and more
than two tokens have q; exact to rounding."""

import numpy as np

from dare_job.decode.sampling.race import left_of
from dare_job.decode.sampling.rejection import Sorted


def distinct(p: np.ndarray, q: np.ndarray) -> float:
    """Of recursive rejection of independent draws that are not equal: the first is of q (1 - q), the second
    of what is left of q."""
    left = left_of(q)
    law = q * left / (q @ left)
    rejected, tokens = np.maximum(law - p, 0), Sorted(np.maximum(p - law, 0), q)
    owed, some = tokens.over_p[0], rejected > 0
    if owed == 0:
        return 1.0
    return float(1 - rejected[some] @ tokens.mass(owed / left[some]) / owed)


def greedy(p: np.ndarray, q: np.ndarray) -> float:
    """Of the greedy rule for draws one after the other: it judges the second, the first comes from the
    residual."""
    tokens = Sorted(p, q)
    scale = 1 / left_of(tokens.q)
    beside = 1 - tokens.mass(scale) - np.minimum(tokens.p, scale * tokens.q)
    return float(tokens.q @ (tokens.p + beside))


def hub(p: np.ndarray, q: np.ndarray) -> float:
    """Of recursive rejection of SpecHub's pairs: a draw and the most probable token, or one of the rest."""
    top = int(np.argmax(q))
    rejected, owed, rest = np.maximum(q - p, 0), np.maximum(p - q, 0), np.delete(q, top)
    first, mass = owed.sum(), rest.sum()
    if first == 0:
        return 1.0
    behind_top = np.maximum(np.delete(owed, top) - first * rest / mass, 0).sum() if mass > 0 else first
    behind_others = first - owed[top]
    return float(1 - (rejected[top] * behind_top + np.delete(rejected, top).sum() * behind_others) / first)
