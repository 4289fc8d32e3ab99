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
        # Of those requests, as in ``Sources`` and ``Prepared``, and a last row that is nobody's
        self._addresses, self._prompts = np.zeros((1, 1), np.int64), np.zeros(1, np.int32)

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, least: float = 0.0) -> DraftBatch:
        if requests is not self._requests:
            self._prepare(tuple(requests))
        return self._prepared(context, lengths, budgets, depths, least)

    def _prepare(self, requests: tuple[Request, ...]) -> None:
        """Look at new rows: the others' pools would have to be fetched from memory again."""
        known, self._requests = self._requests, requests
        if len(known) == len(requests) and all(map(operator.is_, known, requests)):
            return
        places = {id(request): row for row, request in enumerate(known)}
        kept = np.array([*(places.get(id(request), -1) for request in requests), -1])
        self._addresses, self._prompts = self._addresses[kept], self._prompts[kept]
        for row in np.flatnonzero(kept[:-1] < 0):
            self._look_at(requests[row], row)
        sources = Sources(requests, self._addresses[:-1])
        self._prepared = Prepared(sources, self._settings, self._prompts[:-1])

    def _look_at(self, request: Request, row: int) -> None:
        """Note a new row's pools and prompt."""
        addresses = [index.address for index in request.pools]
        lacking = len(addresses) - self._addresses.shape[1]
        if lacking > 0:
            self._addresses = np.pad(self._addresses, ((0, 0), (0, lacking)))
        self._addresses[row] = 0
        self._addresses[row, : len(addresses)] = addresses
        self._prompts[row] = len(request.prompt_ids)
