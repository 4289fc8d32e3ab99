"""Drafts from old text: the pools of each row and its own prompt and text so far."""

from collections.abc import Sequence

import numpy as np

from dare_job.decode.request import Request
from pools.draft import DraftSettings, draft
from pools.tree import DraftBatch


class RetrievalDrafter:
    """Looks the end of each row's text up in its request's pools, nearest first."""

    def __init__(self, settings: DraftSettings):
        self._settings = settings

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray) -> DraftBatch:
        pools = [request.pools for request in requests]
        prompts = np.array([len(request.prompt_ids) for request in requests], np.int32)
        return draft(context, lengths, budgets, pools, self._settings, depths, prompts)
