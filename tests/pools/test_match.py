"""The longest context of a row that occurs in a pool, compared with brute-force search."""

from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_reference import entry

from pools import match
from pools.index import Index
from pools.match import FEW

longest_match = entry(match.longest_match)
State = namedtuple("State", "history at orders scratch")  # the fields of ``blend.State`` that are read


def matched(index, row, context):
    """The longest match as the first tokens of the pool's suffix; empty: none."""
    z = State(np.zeros(context, np.int32), np.zeros(2, np.int32), np.full(2, -1, np.int32),
              np.zeros(context, np.int64))
    known = min(context, len(row))
    z.history[:known] = row[::-1][:known]
    longest_match(z, index.addresses, 1, known)
    assert z.orders[0] == -1  # of another pool
    if z.orders[1] == 0:
        return []
    begin = index.suffixes[z.at[1]]
    codes = index.tokens[begin: begin + z.orders[1]]
    assert (codes > 0).all()
    return index.vocab[codes - 1].tolist()


def longest(texts, row, max_order):
    found = [n for n in range(1, min(max_order, len(row)) + 1) if any(
        text[i: i + n] == row[-n:] for text in texts for i in range(len(text) - n + 1))]
    return row[len(row) - max(found, default=0):] if found else []


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=4),
       st.lists(st.integers(0, 4), max_size=14), st.integers(1, 32), st.integers(2, 12))
def test_short_texts(texts, row, context, depth):
    index = Index.build([np.array(text, np.int32) for text in texts], depth=depth, kind="own")
    assert matched(index, row, context) == longest(texts, row, min(context, depth - 1))


@pytest.mark.parametrize("size, kinds", [(3, 2), (40, 3), (400, 2), (400, 20)])
def test_contexts_with_more_occurrences_than_are_compared_one_by_one(size, kinds):
    """Texts that differ at any distance back; rows that combine texts; ids that the pool does not contain."""
    rng = np.random.default_rng(size + kinds)
    pieces = [rng.integers(0, kinds, rng.integers(1, 40)).tolist() for _ in range(5)]
    texts = [sum((pieces[i] for i in rng.integers(0, 5, rng.integers(1, 5))), []) for _ in range(size)]
    index = Index.build([np.array(text, np.int32) for text in texts], kind="own")
    orders = set()
    for _ in range(60):
        text = texts[rng.integers(size)]
        row = sum((pieces[i] for i in rng.integers(0, 5, 2)), []) + text[: rng.integers(len(text) + 1)]
        if rng.random() < 0.4:
            row[rng.integers(len(row))] = int(rng.integers(kinds + 1))
        found = matched(index, row, 32)
        assert found == longest(texts, row, 31)
        orders.add(len(found))
    assert len(orders) > 4
    assert size < 400 or kinds > 2 or np.bincount(index.tokens).max() > FEW
