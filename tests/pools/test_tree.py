"""Trees of drafters that users write, from lists."""

import numpy as np
import pytest

from pools.tree import BY_DEPTH, ROOT, DraftBatch


def rows(batch: DraftBatch) -> list[list[tuple]]:
    """Token, token of the parent (None: the root) and score of each node, by row."""
    return [[(int(batch.tokens[r, n]), int(batch.tokens[r, parent]) if parent != ROOT else None,
              round(float(batch.scores[r, n]), 4)) for n, parent in enumerate(batch.parents[r, :size])]
            for r, size in enumerate(batch.sizes)]


def test_without_scores_the_order_stays_and_scores_fall_with_depth():
    first, second = round(BY_DEPTH, 4), round(BY_DEPTH**2, 4)
    assert rows(DraftBatch.of([[7, 8], []])) == [[(7, None, first), (8, 7, second)], []]
    assert rows(DraftBatch.of([[7, 8, 9]], [[-1, 0, -1]])) == [
        [(7, None, first), (8, 7, second), (9, None, second)]]


def test_nodes_are_sorted_by_score_and_keep_their_parents():
    two_chains = DraftBatch.of([[1, 2, 3, 4], [5]], [[-1, 0, -1, 2], [-1]],
                               [[0.5, 0.25, 0.75, 0.375], [0.125]])
    assert rows(two_chains) == [[(3, None, 0.75), (1, None, 0.5), (4, 3, 0.375), (2, 1, 0.25)],
                                [(5, None, 0.125)]]
    assert all(parent < n for n, parent in enumerate(two_chains.parents[0]))


def test_a_node_is_at_most_as_probable_as_its_parent():
    batch = DraftBatch.of([[1, 2, 3]], scores=[[0.5, 0.9, 0.4]])
    assert rows(batch) == [[(1, None, 0.5), (2, 1, 0.5), (3, 2, 0.4)]]


def test_nodes_below_the_minimum_are_left_out_with_those_after_them():
    tokens, parents, scores = [[1, 2, 3, 4]], [[-1, 0, 1, -1]], [[0.5, 0.25, 0.75, 0.3]]
    assert rows(DraftBatch.of(tokens, parents, scores, 0.3)) == [[(1, None, 0.5), (4, None, 0.3)]]
    assert DraftBatch.of(tokens, parents, scores, 0.6).sizes.tolist() == [0]
    assert DraftBatch.of([[7, 8, 9]], min_score=0.4).tokens.tolist() == [[7, 8]]  # by depth
    minimum = DraftBatch.of(tokens, parents, scores, 0.3).scores[0, :2]
    assert (minimum >= np.float32(0.3)).all()


@pytest.mark.parametrize(("parents", "scores", "message"), [
    ([-1, 1], [0.5, 0.4], "node 1 has parent 1; it must be -1"),
    ([-1, -2], [0.5, 0.4], "node 1 has parent -2"),
    ([-1, 0], [0.5], "shorter"), ([-1], [0.5], "shorter")])
def test_lists_that_are_no_tree_are_refused(parents, scores, message):
    with pytest.raises(ValueError, match=message):
        DraftBatch.of([[1, 2]], [parents], [scores])
