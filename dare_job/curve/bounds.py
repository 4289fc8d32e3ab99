"""How far the mean of all rows may be from that of those seen, for numbers that are mostly the same.

A row's distance is bounded and mostly 0: where all n rows seen are alike, a t interval or a bootstrap has no
width at all. ``least_mean`` holds for every distribution on [0, 1] and every n. For a mean m the product

    K(m) = sum over f of w(f) prod over rows of (1 + f (x - m) / m),   0 < f <= 1,   sum of w(f) = 1

is at least 0 and has, where the true mean is m or less, an expected value of at most 1; so it is 1 / alpha or
more in at most alpha of all samples (Markov), and every m for which it is so is ruled out. It is what bets of
a share f against m have won: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting" (JRSS B 86, 2024), here with a mixture of fixed bets, so that the order of rows does not matter.
Of n rows that all are 1 the bound is about (alpha / 2) ** (1 / n).
"""

import numpy as np
from scipy import optimize, special

_LEAST = 1e-12
# Half on the bet that loses all where a row is 0, which is the best one where all rows are alike.
_BETS = np.array([1.0, *0.5 ** np.arange(0.5, 10.5, 0.5)])
_WEIGHTS = np.array([0.5, *[0.5 / (len(_BETS) - 1)] * (len(_BETS) - 1)])


def least_mean(values: np.ndarray, alpha: float) -> float:
    """Lower bound, at level 1 - ``alpha``, of the mean of which (n,) ``values`` in [0, 1] are a sample."""
    values, counts = np.unique(np.asarray(values, float), return_counts=True)
    mean = float(values @ counts / max(counts.sum(), 1))
    if _won(values, counts, _LEAST) < -np.log(alpha):
        return 0.0
    return float(optimize.brentq(lambda m: _won(values, counts, m) + np.log(alpha), _LEAST, mean))


def _won(values: np.ndarray, counts: np.ndarray, mean: float) -> float:
    """log K(mean), which falls as the mean grows."""
    with np.errstate(divide="ignore"):
        factors = np.log1p(_BETS[:, None] * (values - mean) / mean)
    return float(special.logsumexp(factors @ counts, b=_WEIGHTS))
