"""Drafts from old text: the pools of each row and its own prompt and text so far."""

from collections.abc import Sequence

import numpy as np

from dare_job.decode.request import Request
from pools.draft import BatchDrafter, DraftSettings, Sources
from pools.tree import DraftBatch


class RetrievalDrafter:
    """Looks the end of each row's text up in its request's pools, nearest first."""

    def __init__(self, settings: DraftSettings):
        self._settings = settings
        self._requests: tuple[Request, ...] = ()  # of the last call: most steps have the same rows
        # Of those requests, which keep their pools open: what ``Sources`` and ``Prepared`` look at
        self._addresses, self._prompts = np.zeros((0, 1), np.int64), np.zeros(0, np.int32)
        self._prepared = BatchDrafter(Sources((), self._addresses), settings)

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, min_score: float = 0.0) -> DraftBatch:
        if requests is not self._requests:
            self._prepare(tuple(requests))
        return self._prepared(context, lengths, budgets, depths, min_score)

    def _prepare(self, requests: tuple[Request, ...]) -> None:
        """Look at new rows: the others' pools would have to be fetched from memory again."""
        known, self._requests = self._requests, requests
        if len(known) != len(requests):
            self._make_room(len(requests), self._addresses.shape[1])
        for row, (request, before) in enumerate(zip(requests, known, strict=False)):
            if request is not before:
                self._look_at(request, row)
        for row in range(len(known), len(requests)):
            self._look_at(requests[row], row)

    def _make_room(self, requests: int, slots: int) -> None:
        """Arrays of another shape, with what is known in place."""
        addresses, prompts = np.zeros((requests, slots), np.int64), np.zeros(requests, np.int32)
        same, wide = min(requests, len(self._prompts)), min(slots, self._addresses.shape[1])
        addresses[:same, :wide], prompts[:same] = self._addresses[:same, :wide], self._prompts[:same]
        self._addresses, self._prompts = addresses, prompts
        self._prepared = BatchDrafter(Sources((), addresses), self._settings, prompts)

    def _look_at(self, request: Request, row: int) -> None:
        """Note a new row's pools and prompt."""
        addresses = [index.address for index in request.pools]
        if len(addresses) > self._addresses.shape[1]:
            self._make_room(len(self._prompts), len(addresses))
        self._addresses[row] = addresses + [0] * (self._addresses.shape[1] - len(addresses))
        self._prompts[row] = len(request.prompt_ids)
