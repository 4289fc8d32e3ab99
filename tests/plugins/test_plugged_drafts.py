"""Trees and sizes of plug-ins are checked before compiled code reads them."""

import numpy as np
import pytest

from dare_job.decode.draft.checked import CheckedDrafter, checked
from dare_job.decode.engine.budget import CheckedBudget
from dare_job.errors import ConfigError
from pools.tree import DraftBatch, empty_drafts

BUDGETS = np.array([4, 2], np.int32)


def batch(**changes) -> DraftBatch:
    return DraftBatch.of([[5, 6, 5], [7]], [[-1, 0, 1], [-1]])._replace(**changes)


def test_valid_trees_are_kept_and_completed():
    drafts = checked(batch(scores=None, sources=None), BUDGETS, 8)
    assert drafts.tokens.tolist() == [[5, 6, 5], [7, 0, 0]] and drafts.parents[0].tolist() == [-1, 0, 1]
    assert drafts.scores.dtype == np.float32
    scores = DraftBatch.of([[5, 6, 5], [7]], [[-1, 0, 1], [-1]]).scores
    assert drafts.scores[0].tolist() == scores[0].tolist() and drafts.scores[1, 0] == scores[1, 0]
    assert scores[1, 0] == scores[0, 0] > scores[0, 1] > scores[0, 2] > 0
    assert drafts.sources.shape == (2, 3) and drafts.sizes.tolist() == [3, 1]
    wide = batch(tokens=batch().tokens.astype(np.int64)[:, ::1], sizes=np.array([3, 1]))
    assert checked(wide, BUDGETS, 8).tokens.dtype == np.int32
    assert checked(empty_drafts(2), BUDGETS, 8).nodes == 0


def test_chains_and_trees_from_lists():
    assert DraftBatch.of([[5, 6], []]).parents.tolist() == [[-1, 0], [-1, -1]]
    assert DraftBatch.of([]).rows == 0 and DraftBatch.of([[], []]).nodes == 0


@pytest.mark.parametrize(("drafts", "message"), [
    (batch(sizes=np.array([3, 3], np.int32)), "the tree of row 1 has size 3, more than its budget of 2"),
    (batch(sizes=np.array([-1, 1], np.int32)), "the tree of row 0 has size -1"),
    (batch(sizes=np.array([4, 1], np.int32)), "the tree of row 0 has size 4"),
    (DraftBatch.of([[5, 8], [7]]), "the tree of row 0 has token 8 in node 1, outside the model's 8 tokens"),
    (DraftBatch.of([[5, -1], [7]]), "has token -1 in node 1"),
    (DraftBatch.of([[5, 6], [7]], [[-1, 1], [-1]]), "has parent 1 of node 1; it must be -1"),
    (DraftBatch.of([[5, 6], [7]], [[-1, -2], [-1]]), "has parent -2 of node 1"),
    (DraftBatch.of([[5, 6, 6], [7]], [[-1, 0, 0], [-1]]), "has token 6 in node 2 and in a sibling of it"),
    (batch(tokens=np.zeros((2, 3))), r"tokens is float64 \(2, 3\); it must hold integers \(2, 3\)"),
    (batch(parents=np.zeros((2, 2), np.int32)), r"parents is int32 \(2, 2\); it must hold integers \(2, 3\)"),
    (batch(scores=np.ones((2, 3), np.int32)), r"scores is int32 \(2, 3\); it must hold floats"),
    (batch(scores=np.full((2, 3), np.nan)), "scores must be finite and at least 0"),
    (batch(tokens=np.int32(3)), r"tokens is int32 \(\)"),
    (DraftBatch.of([[5]]), r"tokens is int32 \(1, 1\); it must hold integers \(2, 1\)"),
    ([[5], [7]], "draft returned list; it must return a DraftBatch"), (None, "draft returned NoneType")])
def test_invalid_trees_are_named(drafts, message):
    class Mine:
        def draft(self, *_):
            return drafts

    with pytest.raises(ConfigError, match=f"^drafter Mine: .*{message}"):
        CheckedDrafter(Mine(), 8).draft((), None, None, BUDGETS, None)


@pytest.mark.parametrize("sizes", [np.array([4, 1]), np.array([-1, 0]), np.array([1]), np.array([1.0, 1.0])])
def test_a_draft_budget_only_reduces_sizes(sizes):
    class Mine:
        row_nodes = 5

        def select(self, drafts, draft_ms):
            return drafts._replace(sizes=sizes)

    budget = CheckedBudget(Mine())
    assert budget.row_nodes == 5
    with pytest.raises(ConfigError, match="^draft budget Mine: select returned the sizes"):
        budget.select(batch(), 0.1)
