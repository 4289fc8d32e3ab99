"""A batch of draft trees as plain arrays: what drafters return to the decode engine."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

ROOT = -1

# Source of a draft token: the nearest one that proposed it. `dare-job show` names them.
SOURCE_NONE, SOURCE_PROMPT, SOURCE_LIVE, SOURCE_OWN, SOURCE_GROUP, SOURCE_GLOBAL, SOURCE_MODEL = range(7)


class DraftBatch(NamedTuple):
    """Token trees of R rows, padded to N nodes (N may be 0).

    The root of a tree is the row's last emitted token and is not a node. Parents precede their children, and
    siblings have distinct tokens.

    Attributes
    ----------
    tokens : int32 (R, N)
        Token of each node.
    parents : int32 (R, N)
        Column of the parent, or ``ROOT``.
    sizes : int32 (R,)
        Number of nodes in use; columns from ``sizes[r]`` on are padding.
    scores : float32 (R, N)
        Estimated probability that the path up to the node is accepted.
    sources : uint8 (R, N)
        SOURCE_* of the nearest source that proposed the node.
    """

    tokens: np.ndarray
    parents: np.ndarray
    sizes: np.ndarray
    scores: np.ndarray
    sources: np.ndarray

    @property
    def rows(self) -> int:
        """R, the number of trees."""
        return self.tokens.shape[0]

    @property
    def nodes(self) -> int:
        """N, the number of columns."""
        return self.tokens.shape[1]


@lru_cache(maxsize=64)
def empty_drafts(rows: int) -> DraftBatch:
    """Trees without nodes, for autoregressive decoding. The arrays are cached: do not write to them."""
    shape = (rows, 0)
    return DraftBatch(np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(rows, np.int32),
                      np.zeros(shape, np.float32), np.zeros(shape, np.uint8))
