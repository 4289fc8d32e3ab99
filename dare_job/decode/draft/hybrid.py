"""Retrieval where it is sure of itself, a draft model elsewhere. Never used unless it is asked for.

Patents on mixing suffix trees with draft models have been reported: check whether they bind you before you
use this (docs/sampling.md).
"""

from collections.abc import Sequence

import numpy as np

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.request import Drafter, Request
from dare_job.decode.sampling.drafts import (
    SampledDrafts,
    deterministic_drafts,
    select_drafts,
    select_sampled_drafts,
)
from dare_job.decode.sampling.random_streams import RowUniforms
from dare_job.decode.sampling.warp import Constraint, Warp
from dare_job.errors import ConfigError
from pools.tree import DraftBatch


class HybridDrafter:
    """A row has retrieval's tree in a step where that gives its likeliest node ``confidence`` or more."""

    def __init__(self, retrieval: Drafter, model: ModelDrafter, confidence: float = 0.6):
        if not 0 <= confidence <= 1:
            raise ConfigError(f"confidence of retrieval is {confidence}; it must be from 0 (retrieval "
                              "wherever it finds something) to 1")
        self.retrieval, self.model, self.confidence = retrieval, model, confidence

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, least: float = 0.0) -> DraftBatch:
        found = self.retrieval.draft(requests, context, lengths, budgets, depths, least)
        sure = self._sure(found)
        if sure.all():
            return found
        rest = np.where(sure, 0, budgets).astype(budgets.dtype)
        return select_drafts(sure, found, self.model.draft(requests, context, lengths, rest, depths, least))

    def sampled(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
                budgets: np.ndarray, depths: np.ndarray, law: str, settings: Warp, draws: RowUniforms,
                constrain: Constraint | None = None) -> SampledDrafts:
        """As ``ModelDrafter.sampled``; a row with retrieval's tree has the law ``top_k``."""
        found = self.retrieval.draft(requests, context, lengths, budgets, depths)
        sure = self._sure(found)
        rest = np.where(sure, 0, budgets).astype(budgets.dtype)
        drawn = self.model.sampled(requests, context, lengths, rest, depths, law, settings, draws,
                                   constrain)
        found = found._replace(sizes=np.where(sure, found.sizes, 0).astype(np.int32))
        return select_sampled_drafts(
            sure, deterministic_drafts(found, self.model.vocabulary, drawn.q.device), drawn
        )

    def _sure(self, found: DraftBatch) -> np.ndarray:
        """bool (R,)."""
        if not found.nodes:
            return np.zeros(found.rows, np.bool_)
        return (found.sizes > 0) & (found.scores[:, 0] >= self.confidence)
