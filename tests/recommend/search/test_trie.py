"""The trie of ids: against a dictionary of prefixes, on random tables."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dare_job.decode.trie_search.trie import ROOT, Trie, Vocabulary
from dare_job.errors import ConfigError

TABLES = arrays(np.int32, st.tuples(st.integers(1, 40), st.integers(1, 5)), elements=st.integers(0, 4))


@given(TABLES)
def test_nodes_are_the_prefixes_in_order_of_level_and_code(codes):
    trie = Trie.from_codes(codes)
    prefixes = {tuple(row[:level]) for row in codes.tolist() for level in range(codes.shape[1] + 1)}
    ordered = sorted(prefixes, key=lambda prefix: (len(prefix), prefix))
    number = {prefix: node for node, prefix in enumerate(ordered)}
    assert len(trie) == len(ordered) and trie.leaves == len({tuple(row) for row in codes.tolist()})
    for prefix, node in number.items():
        children = [number[other] for other in ordered if other[:-1] == prefix and other]
        assert list(range(trie.first[node], trie.first[node] + trie.counts[node])) == children
        assert trie.levels[node] == len(prefix)
        assert trie.codes[node] == (prefix[-1] if prefix else -1)
        assert trie.parents[node] == (number[prefix[:-1]] if prefix else -1)
        below = [number[p] - trie.first_leaf for p in ordered
                 if len(p) == codes.shape[1] and p[:len(prefix)] == prefix]
        assert list(range(*trie.leaf_ends[node])) == below
    assert [number[tuple(row)] - trie.first_leaf for row in codes.tolist()] == trie.rows.tolist()
    np.testing.assert_array_equal(trie.paths(trie.rows), codes)


def test_children_of_many_nodes_at_once():
    trie = Trie.from_codes(np.array([[0, 1], [0, 2], [3, 0]]))
    view = Vocabulary(trie, [10, 20])
    children, there = view.children(torch.tensor([[ROOT, 1], [2, -1]]))
    assert there.tolist() == [[[True, True], [True, True]], [[True, False], [False, False]]]
    assert view.token[children[there]].tolist() == [10, 13, 21, 22, 20]


def test_invalid_tables_are_rejected():
    with pytest.raises(ConfigError, match="table"):
        Trie.from_codes(np.empty((0, 4), np.int32))
    with pytest.raises(ConfigError, match="first_code_token"):
        Vocabulary(Trie.from_codes(np.array([[0, 1]])), [10])
