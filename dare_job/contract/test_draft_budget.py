"""What a draft budget must do."""

import numpy as np
import pytest

from dare_job.contract import cases
from dare_job.decode.engine.budget import CheckedBudget
from dare_job.decode.engine.latency import LatencyCurve
from pools.tree import DraftBatch

CURVE = LatencyCurve.of({"1": {"1": 1.0, "9": 1.3}, "4": {"1": 1.2, "9": 1.9}}, "a curve")
NODES = 12


def make(plugin) -> CheckedBudget:
    return CheckedBudget(plugin.make(CURVE, NODES, None))


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_it_keeps_some_of_the_first_nodes(plugin, rows):
    """No more nodes than there are; ``row_nodes`` and ``min_score`` are numbers."""
    budget, rng = make(plugin), np.random.default_rng(rows)
    for _ in range(20):
        assert budget.row_nodes >= 0 and int(budget.row_nodes) == budget.row_nodes
        min_score = budget.min_score(rows)
        assert min_score is None or 0 <= min_score <= 1
        sizes = rng.integers(0, NODES + 1, rows).astype(np.int32)
        scores = -np.sort(-rng.random((rows, NODES)).astype(np.float32), axis=1)
        drafts = DraftBatch.of([np.arange(NODES)] * rows)._replace(scores=scores, sizes=sizes)
        kept = budget.select(drafts, 0.1)
        assert (kept.sizes <= sizes).all()
        budget.record_step(rows, int(kept.sizes.sum()), 1.5)


def test_rows_without_drafts_are_no_error(plugin):
    """A drafter may find nothing for any row."""
    assert not make(plugin).select(DraftBatch.of([[], []]), 0.1).sizes.any()


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_strict_texts_are_those_of_greedy_decoding(plugin, batch_size):
    """In the engine, with a small model."""
    cases.assert_greedy(cases.write(batch_size=batch_size, nodes=NODES, draft_budget=make(plugin)))
