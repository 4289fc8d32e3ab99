"""The interface of draft budgets, and what the engine checks of one that a user plugs in."""

from typing import Protocol

import numpy as np

from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.result import VerificationResult
from dare_job.errors import ConfigError
from pools.tree import DraftBatch


class DraftBudget(Protocol):
    """Chooses how many draft nodes each row gets in a step.

    One object serves all engines of a process with the same model and settings, one after the other. It is
    made by ``Class(curve, nodes, round_up, **options)``: ``curve.forward_ms(rows, n)`` returns milliseconds
    float64 (n + 1,) of a forward pass by its number of draft nodes, ``nodes`` is the most that a row may
    have, and ``round_up``, a function or None, says how many queries a pass computes for a number of them.
    """

    @property
    def row_nodes(self) -> int:
        """Maximum number of nodes that the drafter proposes for each row of the next step."""

    def min_score(self, rows: int) -> float | None:
        """Score below which the drafter leaves nodes out in the next step; None: the step has no drafts."""

    def select(self, drafts: DraftBatch, draft_ms: float) -> DraftBatch:
        """Reduce ``sizes``: of each row, that many of its first nodes are verified.

        Parameters
        ----------
        drafts : DraftBatch
            Drafts of all rows of the step.
        draft_ms : float
            Milliseconds that drafting took.
        """

    def observe(self, tree: Tree, result: VerificationResult) -> None:
        """Learn from a step: its trees, and what was accepted of them."""

    def record_step(self, rows: int, nodes: int, ms: float) -> None:
        """Learn from the time of a step with so many draft nodes in all, drafting excluded."""


class CheckedBudget:
    """A draft budget of a user. Compiled code reads the sizes that it returns."""

    def __init__(self, budget: DraftBudget):
        self._budget = budget

    def __getattr__(self, name: str):
        return getattr(self._budget, name)

    def select(self, drafts: DraftBatch, draft_ms: float) -> DraftBatch:
        """As ``DraftBudget.select``.

        Raises
        ------
        ConfigError
            The result has other sizes than from 0 to those of ``drafts``.
        """
        sizes = np.asarray(self._budget.select(drafts, draft_ms).sizes)
        alike = sizes.shape == drafts.sizes.shape and sizes.dtype.kind in "iu"
        if not (alike and ((sizes >= 0) & (sizes <= drafts.sizes)).all()):
            raise ConfigError(f"draft budget {type(self._budget).__name__}: select returned the sizes "
                              f"{sizes}; they must be integers from 0 to those of its drafts, {drafts.sizes}")
        return drafts._replace(sizes=sizes.astype(np.int32))
