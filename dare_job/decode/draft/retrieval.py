"""Drafts from earlier texts: the pools of each row, and the row's prompt and text so far."""

from collections.abc import Sequence

import numpy as np

from dare_job.decode.request import Request
from pools.draft import BatchDrafter, DraftSettings
from pools.tree import DraftBatch


class RetrievalDrafter:
    """Drafts the continuations of each row's text that occur in the pools of its request, nearest first.

    The pools of unchanged rows are kept between calls, as most steps have the same rows.
    """

    def __init__(self, settings: DraftSettings):
        self._settings = settings
        self._requests: tuple[Request, ...] = ()  # of the last call; they keep their pools open
        self._addresses, self._prompts = np.zeros((0, 1), np.int64), np.zeros(0, np.int32)
        self._drafter = BatchDrafter(self._addresses, settings)

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, min_score: float = 0.0) -> DraftBatch:
        """As ``Drafter.draft``."""
        if requests is not self._requests:
            self._prepare(tuple(requests))
        return self._drafter(context, lengths, budgets, depths, min_score)

    def _prepare(self, requests: tuple[Request, ...]) -> None:
        """Update the pools and prompts of the rows that changed."""
        previous, self._requests = self._requests, requests
        if len(previous) != len(requests):
            self._resize(len(requests), self._addresses.shape[1])
        for row, (request, old) in enumerate(zip(requests, previous, strict=False)):
            if request is not old:
                self._set_row(request, row)
        for row in range(len(previous), len(requests)):
            self._set_row(requests[row], row)

    def _resize(self, requests: int, slots: int) -> None:
        """Reallocate the arrays and keep the entries of existing rows."""
        addresses, prompts = np.zeros((requests, slots), np.int64), np.zeros(requests, np.int32)
        rows, width = min(requests, len(self._prompts)), min(slots, self._addresses.shape[1])
        addresses[:rows, :width], prompts[:rows] = self._addresses[:rows, :width], self._prompts[:rows]
        self._addresses, self._prompts = addresses, prompts
        self._drafter = BatchDrafter(addresses, self._settings, prompts)

    def _set_row(self, request: Request, row: int) -> None:
        """Set the pools and the prompt length of a row."""
        addresses = [index.address for index in request.pools]
        if len(addresses) > self._addresses.shape[1]:
            self._resize(len(self._prompts), len(addresses))
        self._addresses[row] = addresses + [0] * (self._addresses.shape[1] - len(addresses))
        self._prompts[row] = len(request.prompt_ids)
