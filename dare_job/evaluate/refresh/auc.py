"""AUC of several sets of scores of the same label rows, on bootstrap samples of users that all sets share."""

from collections.abc import Mapping

import numpy as np


class WeightedAuc:
    """AUC of scores (N,) for labels (N,), for any weights of the rows; ties count half.

    The rows are sorted once, so that each further AUC is a few sums over N rows.
    """

    def __init__(self, label: np.ndarray, score: np.ndarray):
        self._order = np.argsort(score, kind="stable")
        ordered = score[self._order]
        self._starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])  # of groups of ties
        self._click = label[self._order] > 0

    def __call__(self, weight: np.ndarray) -> float:
        """AUC with the weight (N,) of each row; NaN where one kind of label has no weight."""
        weight = weight[self._order].astype(float)
        clicks = np.add.reduceat(weight * self._click, self._starts)
        others = np.add.reduceat(weight * ~self._click, self._starts)
        below = np.cumsum(others) - others
        pairs = clicks.sum() * others.sum()
        return float((clicks * (below + others / 2)).sum() / pairs) if pairs else float("nan")


def bootstrap(label: np.ndarray, user: np.ndarray, scores: Mapping[str, np.ndarray], samples: int,
              seed: int) -> dict[str, np.ndarray]:
    """AUC by set, averaged over trainings: (1 + samples,), that of all rows first.

    A sample draws as many users as there are, with replacement, with all their rows. All sets have the same
    samples, so that differences are paired.

    Parameters
    ----------
    label, user : (N,)
    scores : (trainings, N) each
    """
    _, place = np.unique(user, return_inverse=True)
    users = int(place.max()) + 1
    rng = np.random.default_rng(seed)
    drawn = [np.ones(users), *(rng.multinomial(users, np.full(users, 1 / users)) for _ in range(samples))]
    found = {}
    for name, by_training in scores.items():
        measures = [WeightedAuc(label, score) for score in by_training]
        found[name] = np.array([np.mean([measure(count[place]) for measure in measures]) for count in drawn])
    return found


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """(value of all rows, low, high): percentile interval of (1 + samples,) values."""
    tail = (1 - level) / 2
    low, high = np.quantile(values[1:], [tail, 1 - tail])
    return float(values[0]), float(low), float(high)
