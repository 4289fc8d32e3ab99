"""Blend weights: the exact gradient, the counts of leave-one-out, and the calibration of the scores."""

import numpy as np
import pytest

from pools.blend import IS_BACKOFF_ORDER, MAX_DISTINCT
from pools.draft import DraftSettings, draft
from pools.index import Index
from pools.learn import MIN_TEXTS, _counts, _gradient, fit
from pools.lookup import ALPHA, BETA, LIVE

SMOOTHING = 1e-3


def texts_of(count, words, rng, noise):
    """Texts that repeat phrases of ``words``, with a share ``noise`` of the words replaced."""
    phrases = rng.integers(0, words, (12, 8))
    texts = phrases[rng.integers(0, 12, (count, 6))].reshape(count, -1)
    other = rng.integers(0, words, texts.shape)
    return np.where(rng.random(texts.shape) < noise, other, texts).astype(np.int32)


def objective(counts, unigram, weights):
    """Mean of -log(p + SMOOTHING) by the definition of the blend, p being the actual token's probability."""
    total = 0.0
    for i in range(counts.shape[1]):
        rest, p, longest = 1.0, 0.0, True
        for n in range(counts.shape[2], 0, -1):
            for row in (3, 0):
                c = counts[row, i, n - 1]
                if not c or not (IS_BACKOFF_ORDER[n] or (row == 0 and longest)):
                    continue
                extra = weights[LIVE, n - 1]
                if row == 0:
                    extra = weights[ALPHA, n - 1] + weights[BETA, n - 1] * counts[2, i, n - 1]
                    longest = False
                gain = rest * c / (c + extra)
                p += gain * counts[row + 1, i, n - 1] / c
                rest -= gain
        total -= np.log(p + rest * unigram[i] + SMOOTHING)
    return total / counts.shape[1]


def random_counts(rng, positions=40, orders=9):
    c = np.sort(rng.integers(0, 30, (positions, orders)), axis=1)[:, ::-1]
    live = np.sort(rng.integers(0, 4, (positions, orders)), axis=1)[:, ::-1]
    true, live_true = rng.integers(0, c + 1), rng.integers(0, live + 1)
    return np.stack([c, true, rng.integers(1, MAX_DISTINCT, c.shape), live, live_true]).astype(np.int32)


def test_gradient_is_that_of_the_objective():
    rng = np.random.default_rng(3)
    counts, unigram, logs = random_counts(rng), rng.uniform(0, 0.1, 40), rng.normal(1, 0.5, (3, 9))
    gradient = _gradient(counts, unigram, np.exp(logs))
    for place in np.ndindex(logs.shape):
        step = np.zeros_like(logs)
        step[place] = 1e-5
        above, below = (objective(counts, unigram, np.exp(logs + sign * step)) for sign in (1, -1))
        assert gradient[place] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-8)


def test_counts_leave_the_text_itself_out():
    texts = [[1, 2, 3, 9], [1, 2, 3, 4], [5, 2, 3, 4], [1, 2, 3, 1, 2, 3, 4]]
    index = Index.build([np.array(text, np.int32) for text in texts])
    codes = np.searchsorted(index.vocab, [*texts[1], -1]) + 1
    codes[-1] = 0
    counts, unigram = _counts(index.addresses, codes.astype(np.int64), 3)
    c, true, distinct, live, live_true = counts[:, 3]
    assert unigram[3] == 2 / 19  # occurrences of 4 in the other texts / all tokens
    assert c.tolist() == [4, 4, 3]  # occurrences of 3; 2 3; 1 2 3 in the other texts
    assert true.tolist() == [2, 2, 1]  # those followed by 4
    assert distinct.tolist() == [3, 3, 3]
    assert not live.any() and not live_true.any()
    again = np.array([*np.searchsorted(index.vocab, texts[3]) + 1, 0], np.int64)
    c, true, _, live, live_true = _counts(index.addresses, again, 3)[0][:, 6]
    assert c.tolist() == [3, 3, 2] and live.tolist() == [1, 1, 1] and not live_true.any()


def test_fitting_lowers_the_objective_and_is_repeatable():
    rng = np.random.default_rng(5)
    counts, unigram, start = random_counts(rng, 200), rng.uniform(0, 0.1, 200), np.full((3, 9), 4.0)
    found = fit(counts, unigram, start)
    assert objective(counts, unigram, found) < objective(counts, unigram, start)
    assert (fit(counts, unigram, start) == found).all()


def test_only_large_pools_learn_weights():
    texts = texts_of(200, 40, np.random.default_rng(1), 0.1)
    few, own, many = (Index.build(some, kind=kind) for some, kind in
                      ((texts[: MIN_TEXTS - 1], "global"), (texts, "own"), (texts, "global")))
    assert set(few.weights[ALPHA]) == {8.0} and not few.weights[BETA].any()
    assert set(own.weights[ALPHA]) == {1.5}
    assert (many.weights[ALPHA, 1:6] != 8.0).all()
    assert (Index.build(texts).weights == many.weights).all()


def test_learned_weights_are_better_calibrated_on_noisy_texts():
    """Contexts are often followed by a new token here, which a fixed pseudo-count of 1 cannot express."""
    texts = texts_of(400, 60, np.random.default_rng(2), 0.35)
    pool, held_out = Index.build(texts[:300]), texts[300:]
    error, one = {}, np.ones(100, np.int32)
    for pseudo_count in (None, 1.0):
        options = DraftSettings(pseudo_count=pseudo_count, live=False, depth=1)
        seen = []
        for length in range(8, 40, 3):
            tree = draft(held_out, one * length, one, [[pool]] * 100, options)
            hit = tree.tokens[:, 0] == held_out[:, length]
            seen.append((tree.scores[:, 0].mean() - hit.mean(), hit.mean()))
        error[pseudo_count] = abs(np.mean([gap for gap, _ in seen]))
    assert error[None] < 0.05 < error[1.0]
