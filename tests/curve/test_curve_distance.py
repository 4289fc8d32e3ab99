"""Distances of texts, and bounds of their means, against what is computed otherwise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_job.publish.loss import distance

WORDS = st.lists(st.sampled_from("abcde"), max_size=12)


def by_table(a, b) -> int:
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1, j + 1] = table[i, j] + 1 if x == y else max(table[i, j + 1], table[i + 1, j])
    return int(table[-1, -1])


@given(WORDS, WORDS)
def test_the_longest_common_subsequence_is_that_of_the_table(a, b):
    assert distance.common_subsequence(a, b) == by_table(a, b)


def test_it_holds_for_more_words_than_a_machine_word_has_bits():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 9, size).tolist() for size in (150, 131))
    assert distance.common_subsequence(a, b) == by_table(a, b)


@pytest.mark.parametrize("one, other, f1", [
    ("police killed the gunman", "police kill the gunman", 0.75),  # Lin 2004, section 3.1
    ("police killed the gunman", "the gunman kill police", 0.5),
    ("Same, text.", "same text", 1.0), ("", "", 1.0), ("words", "", 0.0)])
def test_rouge_l(one, other, f1):
    assert distance.rouge_l(one, other) == pytest.approx(f1)


def test_equal_texts_are_at_no_distance_and_are_not_encoded():
    asked = []

    def encode(texts):
        asked.extend(texts)
        return np.array([[1.0, 0.0], [3.0, 4.0]])

    found = distance.measure([("a b", "a b"), ("a b", "a c d")], np.array([[2, 2], [2, 5]]), encode)
    assert asked == ["a b", "a c d"]
    assert found.cosine.tolist() == pytest.approx([1, 0.6]) and found.equal.tolist() == [True, False]
    assert found.rouge_l.tolist() == pytest.approx([1, 0.4]) and found.length.tolist() == [0, 0.6]


@pytest.mark.parametrize("rows", [1, 30, 500])
def test_rows_that_are_all_alike_leave_room_for_others(rows):
    bound = distance.mean_lower_bound(np.ones(rows), 0.05)
    assert 0.025 ** (1 / rows) - 0.01 < bound < 0.05 ** (1 / rows)  # Clopper and Pearson's
    assert distance.mean_lower_bound(np.zeros(rows), 0.05) == 0


def test_more_rows_and_less_spread_bring_the_bound_nearer():
    rng = np.random.default_rng(1)
    few, many = rng.uniform(0.4, 0.6, 40), rng.uniform(0.4, 0.6, 4000)
    assert 0.3 < distance.mean_lower_bound(few, 0.05) < 0.47
    assert 0.49 < distance.mean_lower_bound(many, 0.05) < many.mean()
    coins = rng.integers(0, 2, 4000).astype(float)
    assert distance.mean_lower_bound(coins, 0.05) < 0.49


def test_the_bound_is_above_the_true_mean_as_rarely_as_promised():
    rng = np.random.default_rng(2)
    above = 0
    for _ in range(400):  # most rows alike, a few far: where a t interval promises too much
        rows = np.where(rng.random(60) < 0.03, rng.random(60), 1.0)
        above += distance.mean_lower_bound(rows, 0.05) > 1 - 0.03 * 0.5
    assert above <= 20
