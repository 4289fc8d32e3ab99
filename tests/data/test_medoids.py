"""Medoids: shares of groups, and which members stand for a group."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dare_job.embed.kmeans import farthest_points, quotas


@given(st.dictionaries(st.text("abc", max_size=3), st.integers(0, 400), max_size=12), st.integers(0, 500))
def test_quotas_add_up_and_are_in_proportion_with_one_of_each_group_while_they_last(sizes, count):
    found = quotas(sizes, count)
    total = sum(sizes.values())
    assert sum(found.values()) == min(count, total)
    assert all(1 <= found[key] <= sizes[key] for key in found)
    groups = [key for key in sizes if sizes[key]]
    assert len(found) == min(count, len(groups))
    alone = sum(count * size < total for size in sizes.values() if size)  # groups whose share is below one
    assert all(abs(found[key] - count * sizes[key] / total) < 1 + alone for key in found if count <= total)
    assert quotas(dict(reversed(sizes.items())), count) == found


def test_quotas_by_largest_remainder_and_ties_by_size_then_name():
    assert quotas({"a": 50, "b": 30, "c": 20}, 7) == {"a": 4, "b": 2, "c": 1}  # 3.5, 2.1, 1.4
    assert quotas({"b": 10, "a": 10, "c": 20}, 2) == {"c": 1, "a": 1}
    assert quotas({"a": 97, "b": 1, "c": 1, "d": 1}, 5) == {"a": 2, "b": 1, "c": 1, "d": 1}


def test_the_medoid_comes_first_then_the_farthest_from_those_before():
    line = np.array([[0.0], [1.0], [2.0], [3.0], [10.0]])  # mean 3.2
    assert farthest_points(line, 4) == [3, 4, 0, 1]
    assert farthest_points(line, 1) == [3]
    assert farthest_points(line, 0) == [] and farthest_points(line[:0], 3) == []
    assert farthest_points(np.zeros((3, 2)), 9) == [0, 1, 2]  # all alike: each once, in order


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_shorter_answer_begins_a_longer_one_and_covers_better_than_any_order(count, seed):
    vectors = np.random.default_rng(seed).normal(size=(40, 3)).astype(np.float32)
    found = farthest_points(vectors, count)
    assert len(set(found)) == count and farthest_points(vectors, 40)[:count] == found

    def radius(rows):
        return np.linalg.norm(vectors[:, None] - vectors[rows][None], axis=2).min(axis=1).max()
    assert radius(found) <= 2 * radius(list(range(count))) + 1e-6  # Gonzalez: at most twice the best
