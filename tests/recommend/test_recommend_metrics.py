"""Recall, NDCG and intervals against figures worked out by hand and by another library."""

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from dare_job.training.recommender import evaluation

LISTS = [np.array([3, 1, 2]), np.array([5, 6, 7]), np.array([], int)]
TARGETS = [np.array([1, 9]), np.array([5]), np.array([4])]


def test_by_hand():
    assert evaluation.recall(LISTS, TARGETS, 1).tolist() == [0, 1, 0]
    assert evaluation.recall(LISTS, TARGETS, 3).tolist() == [0.5, 1, 0]
    second = 1 / np.log2(3)
    np.testing.assert_allclose(evaluation.ndcg(LISTS, TARGETS, 3), [second / (1 + second), 1, 0])


def test_as_scikit_learn_says():
    rng = np.random.default_rng(0)
    for _ in range(20):
        found, wanted = rng.permutation(12), rng.choice(12, rng.integers(1, 5), replace=False)
        gains, scores = np.zeros(12), np.zeros(12)
        gains[wanted], scores[found] = 1, np.arange(12, 0, -1)
        assert evaluation.ndcg([found], [wanted], 5)[0] == pytest.approx(ndcg_score([gains], [scores], k=5))


def test_intervals_cover_the_truth():
    """95 of 100 intervals in the mean: fewer than 87 has odds of about 1 in 1,000."""
    rng = np.random.default_rng(0)
    found = [evaluation.bootstrap(rng.random(200) < 0.2, seed) for seed in range(100)]
    assert sum(one["low"] <= 0.2 <= one["high"] for one in found) >= 87
    assert all(one["low"] <= one["mean"] <= one["high"] for one in found)
