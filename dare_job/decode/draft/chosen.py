"""What trees that grow level by level share: the nodes that are read next, and the tree as a draft."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from dare_job.decode.levels import Level
from pools.tree import SOURCE_MODEL, DraftBatch


class Growing(Protocol):
    """The arrays that are read of ``Grown`` and ``Drawn``."""

    sizes: np.ndarray
    tokens: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    above: np.ndarray
    below: np.ndarray


def chosen(trees: Growing, lengths: np.ndarray,
           choose: Callable[[np.ndarray, np.ndarray, np.ndarray], None]) -> tuple[Level, np.ndarray] | None:
    """The level of nodes that ``choose`` takes, and row and node of each, int64 (2, T); None: it takes none.

    lengths (R,): tokens of the texts. choose: given tokens (N,), starts (R + 1,) and rows and nodes (2, N) to
    fill in, it notes in the trees what is read.
    """
    first = trees.counts.copy()
    tokens = np.empty(trees.tokens.size, np.int64)
    starts, whose = np.zeros(len(lengths) + 1, np.int64), np.empty((2, trees.tokens.size), np.int64)
    choose(tokens, starts, whose)
    total = starts[-1]
    if not total:
        return None
    level = Level(tokens[:total], starts, lengths.astype(np.int64), first, trees.above, trees.below)
    return level, whose[:, :total]


def batch(trees: Growing, parents: np.ndarray) -> DraftBatch:
    """The trees with these parents int (R, N), as columns."""
    columns = parents.shape[1]
    return DraftBatch(trees.tokens[:, :columns].astype(np.int32), parents.astype(np.int32),
                      trees.sizes.astype(np.int32), trees.scores[:, :columns].astype(np.float32),
                      np.full(parents.shape, SOURCE_MODEL, np.uint8))
