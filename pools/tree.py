"""A batch of draft trees as plain arrays: what drafters hand to the decode engine."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

ROOT = -1

# Where a draft token was found first: shown by `dare-job show`.
SOURCE_NONE, SOURCE_PROMPT, SOURCE_LIVE, SOURCE_OWN, SOURCE_GROUP, SOURCE_GLOBAL, SOURCE_MODEL = range(7)


class DraftBatch(NamedTuple):
    """Token trees for R rows, padded to N nodes (N may be 0).

    The root of a row's tree is its last emitted token and is not a node. Parents stand before their
    children; a node's siblings have distinct tokens.

    tokens   int32 (R, N)    token of each node
    parents  int32 (R, N)    column of the parent, or ``ROOT``
    sizes    int32 (R,)      nodes in use: columns at and after sizes[r] are padding
    scores   float32 (R, N)  estimated probability that the path up to this node is accepted
    sources  uint8 (R, N)    SOURCE_*: nearest source that proposed the node
    """

    tokens: np.ndarray
    parents: np.ndarray
    sizes: np.ndarray
    scores: np.ndarray
    sources: np.ndarray

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def nodes(self) -> int:
        return self.tokens.shape[1]


@lru_cache(maxsize=64)
def empty(rows: int) -> DraftBatch:
    """No drafts: plain decoding. Nobody writes to it."""
    shape = (rows, 0)
    return DraftBatch(
        np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(rows, np.int32),
        np.zeros(shape, np.float32), np.zeros(shape, np.uint8),
    )
