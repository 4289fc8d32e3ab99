"""How much old text is scored: what was learned of its survival against what a token costs."""

import numpy as np
import pytest

from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.model.prefix_cache import common_prefix_length


def timed(step_s: float, prompt_s: float) -> ReuseEstimator:
    scoring = ReuseEstimator()
    for _ in range(3):
        scoring.record_step(10 * step_s, 10)
        scoring.record_prefill(100 * prompt_s, 100)
    return scoring


def test_a_little_is_scored_until_there_are_figures():
    scoring = ReuseEstimator()
    assert scoring.tokens(300, 12) == 32
    for _ in range(50):
        scoring.record_row(0, True)
    scoring.record_step(1.0, 10)
    scoring.record_prefill(1.0, 10)  # the first of each sets things up
    assert scoring.tokens(300, 12) == 32 and scoring.tokens(0, 12) == 0


def test_survival_is_that_of_the_texts_seen():
    """Against the share of a large sample, some of which was not asked to its end."""
    rng = np.random.default_rng(0)
    scoring = ReuseEstimator()
    deaths = np.minimum(rng.geometric(0.02, 4000) - 1, 200)
    for death, asked in zip(deaths, rng.integers(5, 200, 4000), strict=True):
        scoring.record_row(int(min(death, asked)), bool(death < asked))
    survival = scoring.survival(100)
    expected = 0.98 ** np.arange(1, 101)
    assert np.abs(survival - expected).max() < 0.12
    assert (np.diff(survival) <= 0).all()


def test_a_text_that_stays_is_scored_and_one_that_changes_at_once_is_not():
    stays, changes = timed(1e-3, 1e-4), timed(1e-3, 1e-4)
    for _ in range(200):
        stays.record_row(150, False)
        changes.record_row(3, True)
    assert stays.tokens(150, 0) == 150
    assert 3 <= changes.tokens(150, 0) <= 8
    assert changes.tokens(150, 5) <= 3  # drafts write it in fewer steps anyway
    assert stays.tokens(150, 12) == 0


def test_nothing_is_scored_where_a_step_is_as_cheap_and_that_can_change_again():
    scoring = timed(1e-4, 1e-4)
    for _ in range(100):
        scoring.record_row(5, True)
    assert scoring.tokens(100, 0) == 0
    for _ in range(300):  # rows that were not scored tell as much
        scoring.record_row(100, False)
        scoring.record_step(10 * 1e-3, 10)
    assert scoring.tokens(100, 0) == 100


@pytest.mark.parametrize(("text", "old", "length"), [
    ([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([5], [6], 0), ([], [1], 0), ([1], [1], 1)])
def test_what_two_texts_have_in_common(text, old, length):
    assert common_prefix_length(np.array(text, np.int32), np.array(old, np.int32)) == length
