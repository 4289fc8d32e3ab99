"""Number of previous tokens to verify: estimated survival against the cost of a token."""

import numpy as np
import pytest

from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.model.prefix_cache import common_prefix_length


def timed(step_s: float, prompt_s: float, nodes: int = 0) -> ReuseEstimator:
    """An estimator after steps of ten rows, each with so many draft nodes."""
    estimator = ReuseEstimator()
    for _ in range(3):
        estimator.record_step(10 * step_s, 10, 10 * nodes)
        estimator.record_prefill(100 * prompt_s, 100)
    return estimator


def test_a_fixed_number_is_verified_before_measurements():
    estimator = ReuseEstimator()
    assert [estimator.tokens(300, 12, rows) for rows in (1, 10, 64)] == [32, 3, 1]
    for _ in range(50):
        estimator.record_row(0, True)
    estimator.record_step(1.0, 10, 0)
    estimator.record_prefill(1.0, 10)  # the first of each includes setup
    assert estimator.tokens(300, 12, 10) == 3 and estimator.tokens(0, 12, 10) == 0


def test_steps_of_few_rows_say_nothing_about_those_of_many():
    """A row's share of a step is far less with many rows, and so is what a verified token saves."""
    estimator = timed(1e-2, 1e-3)
    for _ in range(200):
        estimator.record_row(150, False)
    assert estimator.tokens(150, 0, 10) == estimator.tokens(150, 0, 8) == 150
    assert estimator.tokens(150, 0, 64) == 1
    for _ in range(3):
        estimator.record_step(64 * 1e-4, 64, 0)
    assert estimator.tokens(150, 0, 64) == 0 and estimator.tokens(150, 0, 10) == 150


def test_logits_count():
    """A verified token needs them; one of a prompt does not."""
    estimator = timed(1.5e-3, 1e-3)
    for _ in range(200):
        estimator.record_row(150, False)
    assert estimator.tokens(150, 0, 10, 1.2) == 150 and estimator.tokens(150, 0, 10, 1.6) == 0


def test_survival_equals_that_of_recorded_texts():
    """Against the share of a large sample, partly censored."""
    rng = np.random.default_rng(0)
    estimator = ReuseEstimator()
    deaths = np.minimum(rng.geometric(0.02, 4000) - 1, 200)
    for death, asked in zip(deaths, rng.integers(5, 200, 4000), strict=True):
        estimator.record_row(int(min(death, asked)), bool(death < asked))
    survival = estimator.survival(100)
    expected = 0.98 ** np.arange(1, 101)
    assert np.abs(survival - expected).max() < 0.12
    assert (np.diff(survival) <= 0).all()


def test_unchanged_texts_are_verified_and_quickly_changing_ones_are_not():
    stays, changes = [[timed(1e-3, 1e-4, nodes) for nodes in (0, 5, 12)] for _ in range(2)]
    for _ in range(200):
        for estimator in stays:
            estimator.record_row(150, False)
        for estimator in changes:
            estimator.record_row(3, True)
    assert stays[0].tokens(150, 32, 10) == 150
    assert 3 <= changes[0].tokens(150, 32, 10) <= 8
    assert changes[1].tokens(150, 32, 10) <= 3  # drafts save these steps as well
    assert stays[2].tokens(150, 32, 10) == 0
    assert stays[2].tokens(150, 5, 10) == stays[1].tokens(150, 32, 10) > 0  # only five of them on one path


def test_drafts_that_are_not_kept_save_no_steps():
    """What counts is how many nodes the draft budget spends, not how many it may spend."""
    estimator = timed(1e-3, 1e-4, 12)
    for _ in range(200):
        estimator.record_row(150, False)
        estimator.record_step(10 * 1e-3, 10, 20)
    assert estimator.tokens(150, 32, 10) == 150


def test_nothing_is_verified_while_steps_are_as_cheap():
    estimator = timed(1e-4, 1e-4)
    for _ in range(100):
        estimator.record_row(5, True)
    assert estimator.tokens(100, 0, 10) == 0
    for _ in range(300):  # unverified rows contribute too
        estimator.record_row(100, False)
        estimator.record_step(10 * 1e-3, 10, 0)
    assert estimator.tokens(100, 0, 10) == 100


@pytest.mark.parametrize(("text", "old", "length"), [
    ([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([5], [6], 0), ([], [1], 0), ([1], [1], 1)])
def test_common_prefix_length(text, old, length):
    assert common_prefix_length(np.array(text, np.int32), np.array(old, np.int32)) == length
