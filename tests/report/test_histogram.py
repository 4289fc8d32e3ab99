"""Quantiles from counts in bins stay within a bin of those of the values themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_job.publish.report import format
from dare_job.publish.report.collect import Top


@given(st.lists(st.floats(0.02, 1e7), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.9, 0.99]))
def test_times_are_within_a_bin_of_the_values(values, share):
    counts = np.bincount(format.time_bins(np.array(values)), minlength=format.TIME_BINS)
    found = format.times_histogram(counts).quantile(share)
    exact = np.quantile(values, share, method="inverted_cdf")
    assert exact / 1.024 <= found <= exact * 1.024


@given(st.lists(st.integers(0, format.LONGEST), min_size=1), st.sampled_from([0.1, 0.5, 0.9]))
def test_lengths_are_exact(values, share):
    found = format.lengths(np.bincount(values, minlength=format.LONGEST + 1))
    assert found.quantile(share) == np.quantile(values, share, method="inverted_cdf")
    assert found.mean() == pytest.approx(np.mean(values))


def test_without_values_there_is_no_quantile():
    empty = format.lengths(np.zeros(format.LONGEST + 1, np.int64))
    assert empty.quantile(0.5) is None and empty.mean() is None


def test_times_outside_the_bins_count_at_their_ends():
    assert format.time_bins(np.array([0.0, 1e30])).tolist() == [0, format.TIME_BINS - 1]


KEYS = st.lists(st.floats(0, 9) | st.just(float("nan")), max_size=30)


@given(st.lists(KEYS, max_size=5), st.integers(1, 8))
def test_top_keeps_the_largest_keys_of_all_batches(batches, size):
    top = Top(size)
    for batch in batches:
        top.offer(np.array(batch), lambda n, batch=batch: {"key": batch[n]})
    every = sorted((key for batch in batches for key in batch if key == key), reverse=True)
    assert [row["key"] for row in top.rows()] == every[:size]
