"""What several seeds say: intervals, a paired test for a difference, and one for equivalence.

All of it is over seeds: what the test part's own rows leave open is not in it.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences a - b over seeds, with an interval and a p value."""

    mean: float
    low: float
    high: float
    p_value: float


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of two values or more."""
    values = np.asarray(values, float)
    mean = float(values.mean())
    reach = float(stats.sem(values) * stats.t.ppf(0.5 + level / 2, len(values) - 1))
    return mean - reach, mean + reach


def paired(a: np.ndarray, b: np.ndarray) -> Difference:
    """Paired t test of "no difference", two-sided, with the 95 % interval of the mean difference."""
    gap = np.asarray(a, float) - np.asarray(b, float)
    if np.ptp(gap) == 0:  # without a spread there is no t
        return Difference(float(gap[0]), float(gap[0]), float(gap[0]), 0.0 if gap[0] else 1.0)
    return Difference(float(gap.mean()), *interval(gap), float(stats.ttest_1samp(gap, 0.0).pvalue))


def equivalence(a: np.ndarray, b: np.ndarray, margin: float) -> Difference:
    """Two one-sided t tests (TOST) of "the mean of a - b is -margin or less, or margin or more".

    The p value is the larger of both; below 0.05 exactly where the 90 % interval, which is returned, lies
    within the margin.
    """
    gap = np.asarray(a, float) - np.asarray(b, float)
    if np.ptp(gap) == 0:
        mean = float(gap[0])
        return Difference(mean, mean, mean, 0.0 if abs(mean) < margin else 1.0)
    above = stats.ttest_1samp(gap, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(gap, margin, alternative="less").pvalue
    return Difference(float(gap.mean()), *interval(gap, 0.90), float(max(above, below)))
