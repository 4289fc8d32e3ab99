"""What a drafter must do."""

import numpy as np
import pytest

from dare_job.contract import cases
from dare_job.contract.cases import VOCABULARY, Rows
from dare_job.decode.draft.checked import CheckedDrafter, checked
from dare_job.decode.engine.draft_budget import AdaptiveBudget
from dare_job.decode.engine.latency import LatencyCurve
from pools.tree import DraftBatch

SEEDS = range(4)


def draft(drafter, rows: Rows, min_score: float = 0.0) -> DraftBatch:
    """The drafter's trees, checked, in arrays of their own."""
    before = [part.copy() for part in rows[1:]]
    drafts = checked(drafter.draft(rows.requests, *rows[1:], min_score), rows.budgets, VOCABULARY)
    assert all(np.array_equal(old, now) for old, now in zip(before, rows[1:], strict=True)), (
        "the drafter wrote to its arguments")
    return DraftBatch(*(part.copy() for part in drafts))


def trees(drafts: DraftBatch) -> list[tuple]:
    """Tokens, parents and scores of each row's nodes."""
    return [tuple(part[r, :size].tolist() for part in (drafts.tokens, drafts.parents, drafts.scores))
            for r, size in enumerate(drafts.sizes)]


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_are_valid_and_within_budget_and_depth(plugin, seed):
    """Tokens of the model, parents before children, distinct siblings; at most ``budgets`` nodes, none deeper
    than ``depths``.
    """
    rows = cases.rows(seed)
    drafts = draft(plugin.make(), rows)
    for r, size in enumerate(drafts.sizes):
        depths = []
        for parent in drafts.parents[r, :size]:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        assert max(depths, default=0) <= rows.depths[r], f"row {r} has depth {max(depths)}, more than allowed"


def test_budgets_of_zero_and_single_tokens_are_no_error(plugin):
    """Every row without budget, then texts of one token, without prompt and pools."""
    rows, drafter = cases.rows(0), plugin.make()
    none = draft(drafter, rows._replace(budgets=np.zeros(7, np.int32), depths=np.zeros(7, np.int32)))
    assert not none.sizes.any()
    for r in (5, 6):
        assert draft(drafter, rows.row(r)).rows == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_calls_give_the_same_trees(plugin, seed):
    """Nothing but the arguments and earlier calls decides: no clock, no unseeded randomness."""
    first, second = plugin.make(), plugin.make()
    for each in (seed, seed + 10):
        assert trees(draft(first, cases.rows(each))) == trees(draft(second, cases.rows(each)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_does_not_depend_on_its_batch(plugin, seed):
    """Each row alone has the tree that it has among others, in any order."""
    rows = cases.rows(seed)
    together = trees(draft(plugin.make(), rows))
    for r in range(7):
        assert trees(draft(plugin.make(), rows.row(r))) == [together[r]], f"row {r}"
    order = np.array([4, 0, 6, 2, 5, 1, 3])
    shuffled = Rows(tuple(rows.requests[r] for r in order), *(part[order] for part in rows[1:]))
    assert trees(draft(plugin.make(), shuffled)) == [together[r] for r in order]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_follows_the_known_tokens_is_not_read(plugin, seed):
    """The context is padded: its columns from ``lengths`` on mean nothing."""
    rows = cases.rows(seed)
    other = rows._replace(context=np.where(np.arange(rows.context.shape[1]) < rows.lengths[:, None],
                                           rows.context, VOCABULARY - 1).astype(np.int32))
    assert trees(draft(plugin.make(), rows)) == trees(draft(plugin.make(), other))


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_descend_and_keep_to_the_minimum(plugin, seed):
    """Scores are from 0 to 1; no node has a higher one than that before it, or one below ``min_score``."""
    for min_score in (0.0, 0.3):
        drafts = draft(plugin.make(), cases.rows(seed), min_score)
        for r, size in enumerate(drafts.sizes):
            scores = drafts.scores[r, :size]
            assert (np.diff(scores) <= 0).all() and (scores <= 1).all(), f"row {r}: {scores}"
            assert (scores >= min_score).all(), f"row {r}: {scores} with min_score {min_score}"


@pytest.mark.parametrize("batch_size", [1, 3, 7])
@pytest.mark.parametrize("nodes", [0, 1, 12])
def test_strict_texts_are_those_of_greedy_decoding(plugin, batch_size, nodes):
    """In the engine, whose rows come and go, with a small model."""
    cases.assert_greedy(cases.write(CheckedDrafter(plugin.make(), VOCABULARY), batch_size, nodes))


def test_strict_texts_are_those_of_greedy_decoding_with_a_draft_budget(plugin):
    """The budget keeps the first nodes of each row."""
    curve = LatencyCurve.of({"1": {"1": 1.0, "9": 1.3}, "4": {"1": 1.2, "9": 1.9}}, "a curve")
    cases.assert_greedy(cases.write(CheckedDrafter(plugin.make(), VOCABULARY),
                                    draft_budget=AdaptiveBudget(curve, 12)))
