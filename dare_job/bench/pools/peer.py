"""The retrieval rule of DARE's authors as a drafter of the engine."""

from collections.abc import Sequence

import numpy as np

from dare_job.decode.request import Request
from pools.index import Index
from pools.published import FrequencyDrafter
from pools.tree import SOURCE_GLOBAL, DraftBatch


class PublishedDrafter:
    """``pools.published`` on each row's first pool; the row's own text is no source."""

    def __init__(self, nodes: int, depth: int):
        self._nodes, self._depth = nodes, depth
        self._drafters: dict[int, tuple[Index, FrequencyDrafter]] = {}  # by the index's id, which is held

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, least: float = 0.0) -> DraftBatch:
        """As in ``decode.draft.base``, with scores of 1. The tree's size is fixed: budgets are that or 0."""
        shape = (len(requests), self._nodes)
        batch = DraftBatch(np.zeros(shape, np.int32), np.zeros(shape, np.int32),
                           np.zeros(len(requests), np.int32), np.ones(shape, np.float32),
                           np.full(shape, SOURCE_GLOBAL, np.uint8))
        for row, request in enumerate(requests):
            if budgets[row]:
                tokens, parents = self._of(request.pools[0])(context[row], int(lengths[row]))
                batch.sizes[row] = size = len(tokens)
                batch.tokens[row, :size], batch.parents[row, :size] = tokens, parents
        return batch

    def _of(self, index: Index) -> FrequencyDrafter:
        if id(index) not in self._drafters:
            self._drafters[id(index)] = index, FrequencyDrafter(index, self._nodes, self._depth)
        return self._drafters[id(index)][1]
