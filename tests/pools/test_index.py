"""The index, compared with a pygtrie trie."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_reference import entry, followers, trie_of

from pools import PoolError, intervals, lookup
from pools.index import Index
from pools.intervals import MAX_RUNS

interval, locate, runs = map(entry, (intervals.interval, intervals.locate, intervals.runs))
code_at, code_of = entry(lookup.code_at), entry(lookup.code_of)
narrow, token_of = entry(lookup.narrow), entry(lookup.token_of)
TEXT = st.lists(st.integers(0, 3), max_size=14)
TEXTS = st.lists(TEXT, max_size=8).flatmap(
    lambda texts: st.lists(st.sampled_from(texts), max_size=6).map(lambda again: texts + again)
    if texts else st.just(texts))


def build(texts, **options):
    return Index.build([np.array(text, np.int32) for text in texts], **options)


def find(index, context):
    codes = np.array([code_of(index.addresses, token) for token in reversed(context)], np.int64)
    return locate(index.addresses, codes, len(context)) if codes.all() else (0, 0)


def read(index, low, count, order, max_suffixes):
    """Counts of ``runs`` by next token, without the ends of texts."""
    codes, hits, firsts = np.zeros((3, MAX_RUNS), np.int32)
    size, total = runs(index.addresses, low, count, order, max_suffixes, codes, hits, firsts)
    assert hits[:size].sum() == total
    for code, suffix in zip(codes[:size], firsts[:size], strict=True):
        assert low <= suffix < low + count and code_at(index.addresses, suffix, order) == code
    return {token_of(index.addresses, code): int(times)
            for code, times in zip(codes[:size], hits[:size], strict=True) if code}


@settings(max_examples=20, deadline=None)
@given(TEXTS)
def test_counts_of_every_context_and_continuation(texts):
    index = build(texts, depth=6)
    trie = trie_of(texts, 6)
    for context in {key[:n] for key in trie for n in range(1, min(len(key), 5) + 1)} | {(3, 3, 3), (9,)}:
        low, count = find(index, context)
        assert count == trie.get(context, 0)
        for token in range(4):
            code = code_of(index.addresses, token)
            inside = narrow(index.addresses, low, count, len(context), code)[1] if count and code else 0
            assert inside == followers(trie, context).get(token, 0)
        for order in range(1, len(context) + 1 if count else 0):
            suffix = low + count // 2
            assert interval(index.addresses, suffix, len(context), order) == find(index, context[-order:])
        if count:
            assert read(index, low, count, len(context), MAX_RUNS) == followers(trie, context)


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_suffixes_are_sorted_and_the_lcp_array_is_right(texts):
    index = build(texts, depth=5)
    flat = index.tokens.tolist()

    def prefix(position):
        return flat[position : flat.index(0, position)][:5]

    prefixes = [prefix(position) for position in index.suffixes]
    assert prefixes == sorted(prefixes)
    assert sorted(index.suffixes.tolist()) == [i for i, code in enumerate(flat) if code]
    for i in range(1, len(prefixes)):
        one, other = prefixes[i - 1], prefixes[i]
        same = len(os.path.commonprefix([one, other]))
        assert index.shared[i] == same
        if one == other:
            assert index.suffixes[i] > index.suffixes[i - 1]


def test_suffix_links_across_blocks():
    rng = np.random.default_rng(0)
    texts = [np.repeat([1, 2, 3], rng.integers(1, 30, 3)) for _ in range(60)] + [np.arange(40)] * 200
    texts += [[4, 5, 6]] * 3000
    index, trie = build(texts), trie_of(texts, 4)
    for context in [(4, 5, 6), (5, 6), (1, 1, 1), (1, 2, 2), (3, 3), (2, 2, 2), (7, 8, 9), (0, 1)]:
        low, count = find(index, context)
        assert count == trie[context] > 0
        for order in range(1, len(context) + 1):
            for suffix in (low, low + count // 3, low + count - 1):
                assert interval(index.addresses, suffix, len(context), order) == find(index, context[-order:])
        if count <= MAX_RUNS:
            assert read(index, low, count, len(context), MAX_RUNS) == followers(trie, context)


def test_a_frequent_context_is_read_at_even_distances():
    index = build([[1, 2]] * 700 + [[1, 3]] * 200 + [[1, token] for token in range(4, 104)])
    low, count = find(index, (1,))
    seen = read(index, low, count, 1, 100)
    assert count == 1000 and sum(seen.values()) == 50
    assert seen[2] == 35 and seen[3] == 10


def test_repeated_texts_are_not_a_quadratic_case():
    text = np.tile(np.arange(3, dtype=np.int32), 20_000)
    index = build([text] * 10)
    assert index.token_count == 600_000
    assert find(index, (0, 1, 2))[1] == 199_990 + 10


def test_edges():
    empty = build([])
    assert (empty.token_count, empty.texts) == (0, 0)
    assert build([[], []]).texts == 0
    one = build([[7], [], [7]])
    assert (one.token_count, one.texts, find(one, (7,))) == (2, 2, (0, 2))
    assert code_at(one.addresses, 0, 1) == 0


def test_more_distinct_tokens_than_two_bytes_hold():
    index = build([np.arange(70_000)[::-1], [5, 4, 9]])
    assert index.tokens.dtype == np.int32
    assert find(index, (5, 4))[1] == 2
    assert find(index, (69_999, 69_998))[1] == 1


@pytest.mark.parametrize("options, message", [
    ({"texts": [[-1]]}, "token id -1"),
    ({"texts": [], "kind": "x"}, "kind"),
    ({"texts": [], "kind": None}, "kind"),
    ({"texts": [], "depth": 1}, "depth"),
])
def test_refused(options, message):
    with pytest.raises(PoolError, match=message):
        build(**options)


@pytest.mark.parametrize("text, message", [
    ([1.5, 2.0], "text 2 .*float64"), (np.array([2**31, 1]), "text 2 .*id 2147483648"),
    (np.array([2**40], np.uint64), "text 2 .*1099511627776"), ([2**70], "text 2 .*object"),
    (np.array([3, -1]), "text 2 .*token id -1"), ("ab", "text 2 .*<U2"), (["a"], "text 2 "),
    ([True], "text 2 .*bool"), ([[1], [2, 3]], "text 2 .*object"), (None, "text 2 .*object"),
])
def test_invalid_token_ids_are_refused_with_the_position_of_the_text(text, message):
    with pytest.raises(PoolError, match=message):
        Index.build([[1], [], text, [1]])


def test_integers_of_any_width_are_token_ids():
    texts = [np.array([1, 2, 3], kind) for kind in (np.uint8, np.int16, np.uint32, np.int64, np.uint64)]
    index = Index.build([*texts, (1, 2, 3), []])
    assert (index.texts, index.vocab.tolist()) == (6, [1, 2, 3])
