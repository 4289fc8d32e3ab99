"""AUC with weights against scikit-learn's, and bootstrap samples of users."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dare_job.evaluate.refresh.scores import WeightedAuc, bootstrap, interval


@pytest.mark.parametrize("decimals", [1, 8])  # with many ties, and without
def test_weighted_auc_is_scikit_learns(decimals):
    rng = np.random.default_rng(3)
    label, score = (rng.random(200) < 0.3).astype(np.float32), rng.random(200).round(decimals)
    measure = WeightedAuc(label, score)
    for weight in (np.ones(200), rng.integers(0, 4, 200), rng.random(200)):
        assert measure(weight) == pytest.approx(roc_auc_score(label, score, sample_weight=weight), abs=1e-12)


def test_a_chance_counts_as_a_click_and_as_none_by_its_share():
    rng = np.random.default_rng(4)
    chance, score, weight = rng.random(50), rng.random(50), rng.random(50)
    both = roc_auc_score(np.repeat([1, 0], 50), np.tile(score, 2),
                         sample_weight=np.concatenate([weight * chance, weight * (1 - chance)]))
    assert WeightedAuc(chance, score)(weight) == pytest.approx(both, abs=1e-12)


def test_one_kind_of_label_gives_nan():
    assert np.isnan(WeightedAuc(np.ones(3), np.arange(3.0))(np.ones(3)))


def test_sets_share_samples_and_an_interval_holds_the_value_of_all_rows():
    rng = np.random.default_rng(0)
    user, label = rng.integers(40, size=800), (rng.random(800) < 0.4).astype(np.float32)
    good, noise = label + rng.normal(0, 1.0, (2, 800)), rng.normal(0, 1.0, (2, 800))
    found = bootstrap(label, user, {"good": good, "same": good.copy(), "noise": noise}, 100, 5)
    assert np.array_equal(found["good"], found["same"])
    mean, low, high = interval(found["good"])
    assert low < mean < high
    assert mean == pytest.approx(np.mean([roc_auc_score(label, score) for score in good]))
    assert interval(found["good"] - found["noise"])[1] > 0
