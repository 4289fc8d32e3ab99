"""Trees of the likeliest paths, grown level by level: the best nodes of each row within its budget.

What trees that grow level by level share: the nodes that are read next, and the tree as a draft.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numba
import numpy as np

from dare_job.decode.model.masks import Level
from pools.tree import ROOT, SOURCE_MODEL, DraftBatch


class LevelTrees(Protocol):
    """The arrays that are read of ``Grown`` and ``Drawn``."""

    sizes: np.ndarray
    tokens: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    above: np.ndarray
    below: np.ndarray


def select_level(trees: LevelTrees, lengths: np.ndarray,
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


def draft_batch(trees: LevelTrees, parents: np.ndarray) -> DraftBatch:
    """The trees with these parents int (R, N), as columns."""
    columns = parents.shape[1]
    return DraftBatch(trees.tokens[:, :columns].astype(np.int32), parents.astype(np.int32),
                      trees.sizes.astype(np.int32), trees.scores[:, :columns].astype(np.float32),
                      np.full(parents.shape, SOURCE_MODEL, np.uint8))


class GreedyTrees(NamedTuple):
    """Nodes of R rows, the best first; and those that were read, in the order of their columns.

    sizes     int64 (R,)
    tokens, parents, depths, places  int64 (R, N): parents and places are among the nodes that were read, -1
              the root, places -1 where a node was not read
    scores    float64 (R, N): probability of the path, falling
    counts    int64 (R,): nodes that were read
    above, below  int64 (R, M): parents and depths of these
    reached   float64 (R, M): their scores
    """

    sizes: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    places: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    above: np.ndarray
    below: np.ndarray
    reached: np.ndarray

    @classmethod
    def empty(cls, rows: int, nodes: int, read: int) -> "GreedyTrees":
        """nodes, read: N and M."""
        sizes, counts = np.zeros((2, rows), np.int64)
        tokens, parents, depths, places = np.full((4, rows, nodes), ROOT, np.int64)
        above, below = np.full((2, rows, read), ROOT, np.int64)
        return cls(sizes, tokens, parents, depths, places, np.zeros((rows, nodes)), counts, above, below,
                   np.zeros((rows, read)))

    def add(self, rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray, shares: np.ndarray,
            budgets: np.ndarray, min_score: float) -> None:
        """Children of nodes that were read, or of roots.

        rows, parents  int64 (T,): ascending rows, and -1 or the number of a node that was read
        tokens, shares (T, K): the children and their probabilities behind that node, the likeliest first
        budgets, min_score as in ``Drafter.draft``
        """
        _add(rows, parents, tokens, shares, budgets, min_score, *self)

    def next_level(self, lengths: np.ndarray, depth: int, deepest: np.ndarray,
                   budgets: np.ndarray) -> tuple[Level, np.ndarray] | None:
        """The nodes at ``depth`` whose children may be among the best, to be read now; None: there are none.

        Returns them, and the row and number of each: int64 (2, T). deepest (R,): ``Drafter.draft``'s depths.
        """
        return select_level(self, lengths, lambda *level: _choose(depth, deepest, budgets, *level, *self))

    def drafts(self) -> DraftBatch:
        columns = int(self.sizes.max(initial=0))
        parents = np.full((len(self.sizes), columns), ROOT, np.int32)
        _link(parents, self.sizes, self.parents, self.places, self.above.shape[1])
        return draft_batch(self, parents)


@numba.njit(cache=True)
def _add(rows, new_parents, new_tokens, shares, budgets, min_score, sizes, tokens, parents, depths, places,
         scores, counts, above, below, reached):
    for t in range(len(rows)):
        r, parent = rows[t], new_parents[t]
        reach = reached[r, parent] if parent >= 0 else 1.0
        depth = below[r, parent] + 1 if parent >= 0 else 1
        for k in range(new_tokens.shape[1]):
            score, end = reach * shares[t, k], sizes[r]
            full = end == budgets[r]
            if not score >= min_score or score <= 0 or full and (end == 0 or score <= scores[r, end - 1]):
                break  # the others are no better
            if full:
                end -= 1
            else:
                sizes[r] += 1
            while end > 0 and scores[r, end - 1] < score:
                tokens[r, end], parents[r, end] = tokens[r, end - 1], parents[r, end - 1]
                depths[r, end], places[r, end] = depths[r, end - 1], places[r, end - 1]
                scores[r, end] = scores[r, end - 1]
                end -= 1
            tokens[r, end], parents[r, end], depths[r, end] = new_tokens[t, k], parent, depth
            places[r, end], scores[r, end] = -1, score


@numba.njit(cache=True)
def _choose(depth, deepest, budgets, level_tokens, starts, whose, sizes, tokens, parents, depths, places,
            scores, counts, above, below, reached):
    total = 0
    for r in range(len(sizes)):
        starts[r] = total
        full = sizes[r] == budgets[r]
        for i in range(sizes[r] if depth < deepest[r] else 0):
            if depths[r, i] != depth or (full and scores[r, i] <= scores[r, sizes[r] - 1]):
                continue
            place = counts[r]
            counts[r] += 1
            places[r, i], above[r, place], below[r, place] = place, parents[r, i], depth
            reached[r, place] = scores[r, i]
            level_tokens[total], whose[0, total], whose[1, total] = tokens[r, i], r, place
            total += 1
    starts[len(sizes)] = total


@numba.njit(cache=True)
def _link(columns, sizes, parents, places, most):
    """Parents as columns: a node's parent was read, and has a place."""
    found = np.empty(most, np.int32)
    for r in range(len(sizes)):
        for i in range(sizes[r]):
            if places[r, i] >= 0:
                found[places[r, i]] = i
            if parents[r, i] >= 0:
                columns[r, i] = found[parents[r, i]]
