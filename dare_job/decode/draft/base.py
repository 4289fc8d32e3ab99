"""What the engine asks of a drafter."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dare_job.decode.request import Request
from pools.tree import DraftBatch


class Drafter(Protocol):
    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, least: float = 0.0) -> DraftBatch:
        """Trees for R rows; the next call may write over them.

        requests  the rows' requests: their pools; the same object while the rows are the same
        context   int32 (R, L): prompt and text so far, padded on the right
        lengths   int32 (R,): tokens in use; the last one is the tree's root
        budgets   int32 (R,): nodes that a row may have
        depths    int32 (R,): longest path that a row can still use
        least     score under which no node is wanted; a row's nodes come with falling scores
        """
