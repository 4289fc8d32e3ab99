"""Recall@K and NDCG@K of item lists, user by user, and intervals of means and of paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 4000
_AT_ONCE = 250


@dataclass(frozen=True)
class Interval:
    """A mean over users with its 95 % percentile interval."""

    mean: float
    low: float
    high: float


def recall(lists: Sequence[np.ndarray], targets: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Share of each user's targets that are among the first k of its list, float64 (U)."""
    return np.array([np.isin(np.unique(wanted), found[:k]).mean()
                     for found, wanted in zip(lists, targets, strict=True)])


def ndcg(lists: Sequence[np.ndarray], targets: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Discounted gain sum_r hit_r / log2(r + 1) over ranks from 1, by the best that k places allow, (U)."""
    discounts = 1 / np.log2(np.arange(2, k + 2))
    return np.array([discounts[:len(found[:k])][np.isin(found[:k], wanted)].sum()
                     / discounts[:min(k, len(np.unique(wanted)))].sum()
                     for found, wanted in zip(lists, targets, strict=True)])


def bootstrap(values: np.ndarray, seed: int = 0) -> Interval:
    """Of the mean of one value a user, over users drawn with replacement.

    Of a paired difference, give the users' differences: the same users are drawn for both.
    """
    values, rng, means = np.asarray(values, float), np.random.default_rng(seed), []
    for _ in range(0, _RESAMPLES, _AT_ONCE):
        drawn = rng.integers(0, len(values), (_AT_ONCE, len(values)))
        means.append(values[drawn].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Interval(float(values.mean()), float(low), float(high))
