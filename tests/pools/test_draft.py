"""Draft trees: shape, determinism, and scores compared with the reference blend."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_reference import children, longest_context, trie_of

from pools import PoolError
from pools.blend import LIVE_BETA, NESTED_FACTOR
from pools.draft import DraftSettings, draft
from pools.index import Index
from pools.kernel import CHILD_RANK_SHARE, CHILD_SCORE_SHARE
from pools.lookup import ALPHA, BETA, LIVE
from pools.tree import ROOT, SOURCE_GLOBAL, SOURCE_GROUP, SOURCE_LIVE, SOURCE_OWN, SOURCE_PROMPT

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=3)  # few enough to be read completely
ROW = st.lists(st.integers(0, 4), min_size=1, max_size=12)
KINDS = ("own", "attribute", "global")
PSEUDO_COUNT = 7.3


def index_of(texts, kind="global"):
    return Index.build([np.array(text, np.int32) for text in texts], kind=kind)


def batch_of(rows, budgets, pools, options=DraftSettings(pseudo_count=PSEUDO_COUNT), **more):  # noqa: B008 (frozen)
    context = np.zeros((len(rows), max(map(len, rows), default=0) + 3), np.int32)
    for r, row in enumerate(rows):
        context[r, : len(row)] = row
    lengths = np.array([len(row) for row in rows], np.int32)
    return draft(context, lengths, np.array(budgets, np.int32), pools, options, **more)


def path_of(batch, r, node):
    path = []
    while node != ROOT:
        path.append(int(batch.tokens[r, node]))
        node = batch.parents[r, node]
    return tuple(reversed(path))


def check_tree(batch, r, budget, depth):
    size = batch.sizes[r]
    assert size <= budget
    paths = [path_of(batch, r, node) for node in range(size)]
    assert len(set(paths)) == size  # siblings differ
    assert all(len(path) <= depth for path in paths)
    for node in range(size):
        parent = batch.parents[r, node]
        assert ROOT <= parent < node
        assert batch.scores[r, node] <= (batch.scores[r, parent] if parent != ROOT else 1)
        assert SOURCE_PROMPT <= batch.sources[r, node] <= SOURCE_GLOBAL
    assert (np.diff(batch.scores[r, :size]) <= 0).all()
    return paths


@settings(max_examples=80, deadline=None)
@given(st.tuples(TEXTS, TEXTS, TEXTS), ROW, st.integers(0, 24), st.integers(1, 6), st.integers(1, 12),
       st.booleans(), st.integers(0, 8), st.integers(0, 99))
def test_tree_holds_the_best_paths_of_the_reference(corpora, row, budget, depth, context, live, prompt, seed):
    pools = [index_of(texts, kind) for texts, kind in zip(corpora, KINDS, strict=True)]
    rng = np.random.default_rng(seed)
    for pool in pools:  # random weights in place of learned ones
        pool.weights[:, 1:] = rng.uniform(0.2, 20, pool.weights[:, 1:].shape)
    options = DraftSettings(depth=depth, context=context, pseudo_count_of=((SOURCE_PROMPT, 2.0),), live=live,
                            window=9)
    batch = batch_of([row], [budget], [pools], options, prompts=np.array([prompt], np.int32))
    paths = check_tree(batch, 0, budget, depth)

    def term(kind, order, different):
        if kind == SOURCE_PROMPT:
            return 2.0 + LIVE_BETA * different
        weights = pools[-1].weights if kind == SOURCE_LIVE else by_kind[kind].weights
        if kind == SOURCE_LIVE:
            return weights[LIVE, order] + LIVE_BETA * different
        nested = NESTED_FACTOR if kind == SOURCE_GROUP else 1  # the global pool follows
        return nested * (weights[ALPHA, order] + weights[BETA, order] * different)

    by_kind = {pool.source: pool for pool in pools}
    sources = [(pool.source, trie_of(texts, context + 1), pool.depth - 1)
               for pool, texts in zip(pools, corpora, strict=True)]
    orders = {(): [longest_context(row, trie, min(context, longest)) for _, trie, longest in sources]}
    scores, open_scores = {(): 1.0}, {}
    for path in [(), *paths]:
        if path:
            scores[path] = open_scores.pop(path)
            assert batch.scores[0, paths.index(path)] == pytest.approx(scores[path], rel=1e-5)
        if len(path) < depth:
            found = children(row, path, orders[path], sources, options, prompt, term)
            for token, (share, known) in found.items():
                open_scores[(*path, token)], orders[(*path, token)] = scores[path] * share, known
    rest = max(open_scores.values(), default=0)
    if batch.sizes[0] < budget:
        assert rest == 0
    elif budget:  # a node is expanded only if a child could have this share of its score
        assert rest * CHILD_RANK_SHARE <= scores[paths[-1]] * (1 + 1e-6)


@settings(max_examples=30, deadline=None)
@given(TEXTS, TEXTS, st.lists(st.tuples(ROW, st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=6))
def test_rows_are_independent(first, second, rows):
    near, far = index_of(first, "collaborative"), index_of(second)
    choices = [[], [far], [near, far]]
    together = batch_of([row for row, _, _ in rows], [budget for _, budget, _ in rows],
                        [choices[pools] for _, _, pools in rows], DraftSettings(threads=3))
    for r, (row, budget, pools) in enumerate(rows):
        alone = draft(np.array([row], np.int32), np.array([len(row)], np.int32), np.array([budget], np.int32),
                      [choices[pools]])
        size = together.sizes[r]
        assert size == alone.sizes[0]
        for name in ("tokens", "parents", "scores", "sources"):
            assert (getattr(together, name)[r, :size] == getattr(alone, name)[0, :size]).all()


def test_threads_change_nothing():
    rng = np.random.default_rng(1)
    pool = index_of(rng.integers(0, 50, (200, 60)))
    rows = rng.integers(0, 50, (80, 20)).tolist()
    trees = [batch_of(rows, [32] * 80, [[pool]] * 80, DraftSettings(threads=n)) for n in (1, 4)]
    for name in ("tokens", "parents", "sizes", "scores", "sources"):
        assert (getattr(trees[0], name) == getattr(trees[1], name)).all()


def test_frequent_contexts_are_sampled_and_frequent_continuations_kept():
    texts = [[1, 2]] * 700 + [[1, 3]] * 200 + [[1, token] for token in range(4, 304)]
    batch = batch_of([[9, 1]], [8], [[index_of(texts)]])
    check_tree(batch, 0, 8, 12)
    assert batch.tokens[0, :2].tolist() == [2, 3]
    assert batch.scores[0, 0] == pytest.approx(700 / 1200, rel=0.1)


def test_nearer_source_is_named_and_weighs_more():
    group, whole = index_of([[1, 2]] * 3, "attribute"), index_of([[1, 3]] * 3)
    batch = batch_of([[1]], [2], [[group, whole]])
    assert batch.tokens[0].tolist() == [2, 3]
    assert batch.sources[0].tolist() == [SOURCE_GROUP, SOURCE_GLOBAL]
    own = batch_of([[1, 3, 1]], [3], [[index_of([[1, 2]] * 3, "own"), whole]])
    assert own.tokens[0].tolist() == [2, 3, 1]
    assert own.sources[0].tolist() == [SOURCE_OWN, SOURCE_LIVE, SOURCE_LIVE]


def test_a_group_counts_less_if_the_global_pool_follows():
    group, whole = index_of([[1, 2]] * 6, "attribute"), index_of([[1, 3]] * 6)
    alone, nested = (batch_of([[1]], [2], [pools], DraftSettings()) for pools in ([group], [group, whole]))
    assert alone.tokens[0, 0] == 2 and nested.tokens[0].tolist() == [3, 2]
    assert nested.scores[0, 1] == pytest.approx(6 / (6 + 8 * 8))


def test_long_contexts_are_distinguished():
    """Two texts that differ only 20 tokens back, at orders that short random texts never reach."""
    shared = list(range(100, 118))
    pool = index_of([[1, 2, *shared, 5]] * 2 + [[3, 4, *shared, 6]] * 9)
    batch = batch_of([[1, 2, *shared]], [1], [[pool]], DraftSettings(pseudo_count=1.0, live=False))
    assert batch.tokens[0].tolist() == [5]
    short = DraftSettings(pseudo_count=1.0, live=False, context=15)
    batch = batch_of([[1, 2, *shared]], [1], [[pool]], short)
    assert batch.tokens[0].tolist() == [6]


def test_limits():
    pool = index_of([list(range(30))])
    batch = batch_of([[3], [3], [3], [3]], [0, 5, 5, 5], [[pool]] * 4,
                     max_depth=np.array([9, 2, 0, 9], np.int32))
    assert batch.sizes.tolist() == [0, 2, 0, 5]
    assert batch.tokens[3].tolist() == [4, 5, 6, 7, 8]
    assert batch_of([[3]], [0], [[pool]]).nodes == 0
    nothing = draft(np.zeros((1, 4), np.int32), np.zeros(1, np.int32), np.ones(1, np.int32), [[pool]])
    assert nothing.sizes.tolist() == [0]


def test_nodes_below_the_minimum_score_are_neither_kept_nor_expanded():
    rng = np.random.default_rng(3)
    pool = index_of(rng.integers(0, 5, (200, 30)))
    rows = rng.integers(0, 5, (20, 6)).tolist()
    everything = batch_of(rows, [60] * 20, [[pool]] * 20)
    wanted = batch_of(rows, [60] * 20, [[pool]] * 20, min_score=0.05)
    assert 0 < wanted.sizes.sum() < everything.sizes.sum()
    for r in range(20):
        found = {path_of(wanted, r, node): wanted.scores[r, node] for node in range(wanted.sizes[r])}
        assert min(found.values(), default=1) >= 0.05
        for path in found:
            assert len(path) == 1 or found[path[:-1]] * CHILD_SCORE_SHARE >= np.float32(0.05)
        best = [path_of(everything, r, node) for node in range(everything.sizes[r])
                if everything.scores[r, node] >= 0.05 and grown(everything, r, node)]
        assert set(best) <= set(found)


def grown(batch, r, node):
    parent = batch.parents[r, node]
    return parent == ROOT or batch.scores[r, parent] * CHILD_SCORE_SHARE >= 0.05


def test_draft_stops_at_the_end_of_a_text():
    batch = batch_of([[2]], [8], [[index_of([[1, 2], [3, 4]])]])
    assert batch.sizes[0] == 0


def test_pseudo_counts_by_source():
    pools = [index_of([[1, 2]] * 3, "attribute"), index_of([[1, 3]] * 3)]
    trusted = DraftSettings(pseudo_count_of=((SOURCE_GROUP, 30.0), (SOURCE_GLOBAL, 0.5)))
    assert batch_of([[1]], [2], [pools], trusted).tokens[0].tolist() == [3, 2]


@pytest.mark.parametrize("change, message", [
    ({"options": DraftSettings(context=40)}, "context"),
    ({"options": DraftSettings(window=10**6)}, "window"),
    ({"options": DraftSettings(pseudo_count=0.0)}, "pseudo_count")])
def test_refused(change, message):
    with pytest.raises(PoolError, match=message):
        batch_of(**{"rows": [[1]], "budgets": [1], "pools": [[]], **change})
