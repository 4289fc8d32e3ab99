"""Quantiles from counts in bins stay within a bin of those of the values themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_job.publish.report import format
from dare_job.publish.report.collect import Top


@given(st.lists(st.floats(0.02, 1e7), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.9, 0.99]))
def test_times_are_within_a_bin_of_the_values(values, share):
    histogram = format.latency_histogram()
    histogram.add(np.array(values))
    found = histogram.quantile(share)
    exact = np.quantile(values, share, method="inverted_cdf")
    assert exact / 1.024 <= found <= exact * 1.024


@given(st.lists(st.integers(0, format.LONGEST), min_size=1), st.sampled_from([0.1, 0.5, 0.9]))
def test_lengths_are_exact(values, share):
    histogram = format.accepted_histogram()
    histogram.add(np.array(values))
    assert histogram.quantile(share) == np.quantile(values, share, method="inverted_cdf")
    assert histogram.mean() == pytest.approx(np.mean(values))


def test_without_values_there_is_no_quantile():
    empty = format.accepted_histogram()
    assert empty.quantile(0.5) is None and empty.mean() is None


def test_values_outside_the_bins_count_at_their_ends():
    for histogram, values in ((format.latency_histogram(), [0.0, 1e30]),
                              (format.accepted_histogram(), [-1, 10 * format.LONGEST])):
        histogram.add(np.array(values))
        assert histogram.counts[0] == histogram.counts[-1] == 1


KEYS = st.lists(st.floats(0, 9) | st.just(float("nan")), max_size=30)


@given(st.lists(KEYS, max_size=5), st.integers(1, 8))
def test_top_keeps_the_largest_keys_of_all_batches(batches, size):
    top = Top(size)
    for batch in batches:
        top.offer(np.array(batch), lambda n, batch=batch: {"key": batch[n]})
    every = sorted((key for batch in batches for key in batch if key == key), reverse=True)
    assert [row["key"] for row in top.rows()] == every[:size]
