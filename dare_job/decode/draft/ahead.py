"""Draft nodes that a model has read behind its rows' texts: those that a text takes in stay in the cache."""

import numba
import numpy as np

from dare_job.decode.levels import Level


class Ahead:
    """By slot, in the order of their columns: tokens, parents among themselves (-1: the text's last token)
    int64 (S, M), and how many, int64 (S,).
    """

    def __init__(self, slots: int):
        self.tokens, self.parents = np.zeros((2, slots, 0), np.int64)
        self.counts = np.zeros(slots, np.int64)

    def note(self, level: Level) -> None:
        """Nodes that are read now."""
        counts = np.diff(level.starts)
        rows = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(rows)) - np.repeat(level.starts[:-1] - level.first, counts)
        lacking = level.parents.shape[1] - self.tokens.shape[1]
        if lacking > 0:
            self.tokens, self.parents = (
                np.pad(x, ((0, 0), (0, lacking))) for x in (self.tokens, self.parents))
        self.tokens[rows, places], self.parents[rows, places] = level.tokens, level.parents[rows, places]
        self.counts[: len(counts)] = level.first + counts

    def move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        for one in (self.tokens, self.parents, self.counts):
            one[targets] = one[sources]

    def accepted(self, context: np.ndarray, lengths: np.ndarray,
                 read: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nodes that texts went on with, their last tokens left out; none stay noted.

        context, lengths as in ``Drafter.draft``; read int64 (R,): tokens before the nodes, at most 0 where
        there are none. Returns paths (R, D) and counts (R,) for ``Target.keep``.
        """
        rows = len(read)
        counts = np.zeros(rows, np.int64)
        paths = np.zeros((rows, 1 + int(self.counts[:rows].max(initial=0))), np.int64)
        _follow(context, lengths, read, self.tokens, self.parents, self.counts, paths, counts)
        self.counts[:rows] = 0
        return np.ascontiguousarray(paths[:, : 1 + int(counts.max(initial=0))]), counts


@numba.njit(cache=True)
def _follow(context, lengths, read, tokens, parents, nodes, paths, counts):
    for r in range(len(read)):
        at = -1
        for node in range(nodes[r] if read[r] > 0 else 0):
            place = read[r] + counts[r]
            if place >= lengths[r] - 1:
                break
            if parents[r, node] == at and tokens[r, node] == context[r, place]:
                at = node
                counts[r] += 1
                paths[r, counts[r]] = node + 1
