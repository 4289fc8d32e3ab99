"""Draft trees of the most probable paths, grown level by level: the best nodes of each row within its budget.

Also what trees that grow level by level share: selecting the nodes to read next, and conversion to a draft.
"""

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from dare_job.decode.model.masks import Level
from pools.tree import ROOT, SOURCE_MODEL, DraftBatch


def select_level(trees, lengths: np.ndarray, select: Callable[[np.ndarray, np.ndarray, np.ndarray], None],
                 ) -> tuple[Level, np.ndarray] | None:
    """Build the level of nodes that ``select`` chooses.

    Parameters
    ----------
    trees
        ``GreedyTrees`` or ``SampledTrees`` of R rows with up to N nodes.
    lengths : (R,)
        Number of tokens of the texts.
    select
        Fills tokens (R N,), starts (R + 1,) and owners (2, R N), the row and number of each node, and records
        in ``trees`` which nodes are read.

    Returns
    -------
    level : Level
        Its T nodes. None instead of both results if ``select`` chooses no node.
    owners : int64 (2, T)
        Row and number of each node.
    """
    first = trees.read_counts.copy()
    tokens = np.empty(trees.tokens.size, np.int64)
    starts, owners = np.zeros(len(lengths) + 1, np.int64), np.empty((2, trees.tokens.size), np.int64)
    select(tokens, starts, owners)
    total = starts[-1]
    if not total:
        return None
    level = Level(tokens[:total], starts, lengths.astype(np.int64), first, trees.read_parents,
                  trees.read_depths)
    return level, owners[:, :total]


def draft_batch(trees, parents: np.ndarray) -> DraftBatch:
    """The trees as a draft; ``parents`` int (R, N) are columns."""
    columns = parents.shape[1]
    return DraftBatch(trees.tokens[:, :columns].astype(np.int32), parents.astype(np.int32),
                      trees.sizes.astype(np.int32), trees.scores[:, :columns].astype(np.float32),
                      np.full(parents.shape, SOURCE_MODEL, np.uint8))


class GreedyTrees(NamedTuple):
    """Nodes of R rows, best first, and the nodes that the draft model has read, in cache order.

    Attributes
    ----------
    sizes : int64 (R,)
        Number of nodes.
    tokens, depths : int64 (R, N)
    parents : int64 (R, N)
        Number of the parent among the nodes that were read; -1: the root.
    read_index : int64 (R, N)
        Number of the node among those that were read; -1: not read.
    scores : float64 (R, N)
        Probability of the path, descending.
    read_counts : int64 (R,)
        Number of nodes that were read.
    read_parents, read_depths : int64 (R, M)
        Of the nodes that were read.
    read_scores : float64 (R, M)
        Their scores.
    """

    sizes: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    read_index: np.ndarray
    scores: np.ndarray
    read_counts: np.ndarray
    read_parents: np.ndarray
    read_depths: np.ndarray
    read_scores: np.ndarray

    @classmethod
    def empty(cls, rows: int, nodes: int, max_read: int) -> "GreedyTrees":
        """Empty trees of R rows with capacity for N nodes and M nodes that are read."""
        sizes, read_counts = np.zeros((2, rows), np.int64)
        tokens, parents, depths, read_index = np.full((4, rows, nodes), ROOT, np.int64)
        read_parents, read_depths = np.full((2, rows, max_read), ROOT, np.int64)
        return cls(sizes, tokens, parents, depths, read_index, np.zeros((rows, nodes)), read_counts,
                   read_parents, read_depths, np.zeros((rows, max_read)))

    def add(self, rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray, probabilities: np.ndarray,
            budgets: np.ndarray, min_score: float) -> None:
        """Add children of nodes that were read, or of roots.

        Parameters
        ----------
        rows : int64 (T,)
            Ascending.
        parents : int64 (T,)
            Number of a node that was read; -1: the root.
        tokens, probabilities : (T, K)
            The children and their probabilities given the parent, descending.
        budgets, min_score
            As in ``Drafter.draft``.
        """
        _add(rows, parents, tokens, probabilities, budgets, min_score, *self)

    def next_level(self, lengths: np.ndarray, depth: int, max_depths: np.ndarray,
                   budgets: np.ndarray) -> tuple[Level, np.ndarray] | None:
        """Select the nodes at ``depth`` whose children may be among the best, as in ``select_level``.

        ``max_depths`` (R,) and ``budgets`` (R,) as in ``Drafter.draft``.
        """
        return select_level(self, lengths, lambda *level: _select(depth, max_depths, budgets, *level, *self))

    def drafts(self) -> DraftBatch:
        """The trees as a draft, padded to the largest; parents are columns there."""
        columns = int(self.sizes.max(initial=0))
        parents = np.full((len(self.sizes), columns), ROOT, np.int32)
        _parents_to_columns(parents, self.sizes, self.parents, self.read_index, self.read_parents.shape[1])
        return draft_batch(self, parents)


@numba.njit(cache=True)
def _add(rows, new_parents, new_tokens, probabilities, budgets, min_score, sizes, tokens, parents, depths,
         read_index, scores, read_counts, read_parents, read_depths, read_scores):
    for t in range(len(rows)):
        r, parent = rows[t], new_parents[t]
        path_score = read_scores[r, parent] if parent >= 0 else 1.0
        depth = read_depths[r, parent] + 1 if parent >= 0 else 1
        for k in range(new_tokens.shape[1]):
            score, end = path_score * probabilities[t, k], sizes[r]
            full = end == budgets[r]
            if not score >= min_score or score <= 0 or full and (end == 0 or score <= scores[r, end - 1]):
                break  # the remaining children score no better
            if full:
                end -= 1
            else:
                sizes[r] += 1
            while end > 0 and scores[r, end - 1] < score:
                tokens[r, end], parents[r, end] = tokens[r, end - 1], parents[r, end - 1]
                depths[r, end], read_index[r, end] = depths[r, end - 1], read_index[r, end - 1]
                scores[r, end] = scores[r, end - 1]
                end -= 1
            tokens[r, end], parents[r, end], depths[r, end] = new_tokens[t, k], parent, depth
            read_index[r, end], scores[r, end] = -1, score


@numba.njit(cache=True)
def _select(depth, max_depths, budgets, level_tokens, starts, owners, sizes, tokens, parents, depths,
            read_index, scores, read_counts, read_parents, read_depths, read_scores):
    total = 0
    for r in range(len(sizes)):
        starts[r] = total
        full = sizes[r] == budgets[r]
        for i in range(sizes[r] if depth < max_depths[r] else 0):
            if depths[r, i] != depth or (full and scores[r, i] <= scores[r, sizes[r] - 1]):
                continue
            node = read_counts[r]
            read_counts[r] += 1
            read_index[r, i], read_parents[r, node], read_depths[r, node] = node, parents[r, i], depth
            read_scores[r, node] = scores[r, i]
            level_tokens[total], owners[0, total], owners[1, total] = tokens[r, i], r, node
            total += 1
    starts[len(sizes)] = total


@numba.njit(cache=True)
def _parents_to_columns(columns, sizes, parents, read_index, max_read):
    """Convert parents among the nodes that were read to columns: every parent was read and is kept."""
    column_of = np.empty(max_read, np.int32)
    for r in range(len(sizes)):
        for i in range(sizes[r]):
            if read_index[r, i] >= 0:
                column_of[read_index[r, i]] = i
            if parents[r, i] >= 0:
                columns[r, i] = column_of[parents[r, i]]
