"""Length quantiles, compared with counting; the nearest pool with enough texts decides."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools.index import Index, length_quantile


def pool(lengths, **options) -> Index:
    return Index.build([np.full(length, 7, np.int32) for length in lengths], **options)


@given(st.lists(st.integers(0, 60), max_size=60), st.integers(1, 99))
def test_the_smallest_length_that_the_share_of_texts_does_not_exceed(lengths, percent):
    found = length_quantile([pool(lengths)], percent / 100)
    texts = [length for length in lengths if length]  # pools skip empty texts
    if len(texts) < max(20, math.ceil(100 / (100 - percent))):
        assert found is None
        return
    assert 100 * sum(length <= found for length in texts) >= percent * len(texts)
    assert 100 * sum(length < found for length in texts) < percent * len(texts)
    assert found in texts


@pytest.mark.parametrize(("texts", "quantile", "enough"), [
    (19, 0.5, False), (20, 0.5, True), (19, 0.95, False), (20, 0.95, True), (99, 0.99, False),
    (100, 0.99, True)])
def test_enough_texts(texts, quantile, enough):
    assert (length_quantile([pool(range(1, texts + 1))], quantile) is not None) == enough


def test_the_nearest_pool_with_enough_texts_decides():
    own, few = pool([400], kind="own"), pool([300] * 19, kind="attribute")
    near, everyone = pool(range(101, 201), kind="collaborative"), pool(range(1, 401))
    assert length_quantile((own, near, everyone), 0.95) == 195
    assert length_quantile((own, few, everyone), 0.95) == 380
    assert length_quantile((own, few), 0.95) is None and length_quantile((), 0.95) is None


def test_lengths_of_a_saved_pool(tmp_path):
    pool([3, 1, 2, 2]).save(tmp_path / "p")
    assert Index.open(tmp_path / "p").lengths.tolist() == [1, 2, 2, 3]
    assert pool([]).lengths.tolist() == []
