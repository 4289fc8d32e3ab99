"""Intervals and tests over seeds, against scipy's own and against numbers worked out by hand."""

import numpy as np
import pytest
from scipy import stats as reference

from dare_job.evaluate.ctr import report

A = np.array([0.741, 0.738, 0.745, 0.740, 0.743])
B = np.array([0.736, 0.737, 0.739, 0.738, 0.736])


def test_the_interval_is_students():
    low, high = report.interval(A)
    assert (low, high) == pytest.approx(reference.t.interval(0.95, 4, A.mean(), reference.sem(A)))
    # by hand: mean 0.7414, s = 0.0027019, t(0.975, 4) = 2.776445, s / sqrt(5) = 0.00120830
    assert (low, high) == pytest.approx((0.738045, 0.744755), abs=1e-6)


def test_the_paired_test_is_that_of_scipy():
    found, theirs = report.paired(A, B), reference.ttest_rel(A, B)
    assert found.p_value == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert found.mean == pytest.approx(0.0042)


@pytest.mark.parametrize("margin", [0.002, 0.005, 0.01])
def test_equivalence_holds_exactly_where_the_90_percent_interval_is_within_the_margin(margin):
    found = report.equivalence(A, B, margin)
    within = -margin < found.low and found.high < margin
    assert (found.p_value < 0.05) is within
    gap = A - B
    t = [(gap.mean() + margin) / reference.sem(gap), (gap.mean() - margin) / reference.sem(gap)]
    assert found.p_value == pytest.approx(max(reference.t.sf(t[0], 4), reference.t.cdf(t[1], 4)))


def test_equivalence_does_not_depend_on_the_order():
    assert report.equivalence(A, B, 0.006).p_value == pytest.approx(report.equivalence(B, A, 0.006).p_value)


def test_its_false_alarms_are_as_rare_as_promised():
    """At a true difference of the margin 5 % are called equivalent: 20 of 400 expected, 38 are 4 sigma."""
    rng = np.random.default_rng(0)
    alarms = sum(report.equivalence(rng.normal(0.002, 0.001, 8), np.zeros(8), 0.002).p_value < 0.05
                 for _ in range(400))
    assert 3 <= alarms <= 38


@pytest.mark.parametrize("gap, difference, equal", [(0.0, 1.0, 0.0), (0.001, 0.0, 0.0), (0.5, 0.0, 1.0)])
def test_without_any_spread_the_verdict_is_certain(gap, difference, equal):
    values = np.zeros(5)
    assert report.paired(values + gap, values).p_value == difference
    assert report.equivalence(values + gap, values, 0.002).p_value == equal
