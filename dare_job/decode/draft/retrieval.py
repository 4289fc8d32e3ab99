"""Drafts from old text: the pools of each row and its own prompt and text so far."""

import operator
from collections.abc import Sequence

import numpy as np

from dare_job.decode.request import Request
from pools.draft import DraftSettings, Prepared, Sources
from pools.tree import DraftBatch


class RetrievalDrafter:
    """Looks the end of each row's text up in its request's pools, nearest first."""

    def __init__(self, settings: DraftSettings):
        self._settings = settings
        self._requests: tuple[Request, ...] = ()  # of the last call: most steps have the same rows
        self._prepared = Prepared(Sources.of(()), settings)

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, least: float = 0.0) -> DraftBatch:
        if requests is not self._requests:
            self._prepare(tuple(requests))
        return self._prepared(context, lengths, budgets, depths, least)

    def _prepare(self, requests: tuple[Request, ...]) -> None:
        known, self._requests = self._requests, requests
        if len(known) == len(requests) and all(map(operator.is_, known, requests)):
            return
        prompts = np.array([len(request.prompt_ids) for request in requests], np.int32)
        sources = Sources.of(tuple([request.pools for request in requests]))
        self._prepared = Prepared(sources, self._settings, prompts)
