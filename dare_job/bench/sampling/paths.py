"""Verification without tree attention: each path of a tree is a row of its own in the target's forward.

What is drafted, verified and written is as in the engines; the root and the nodes that paths share are read
once for each path. Paths keep rows in a second cache, to which only what they lack of a row's text is copied.
"""

import numba
import numpy as np

from dare_job.decode.engine.engine import Engine, ForwardOutput
from dare_job.decode.engine.rows import Rows
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.sampling.engine import SamplingEngine
from pools.tree import DraftBatch


class _ByPaths:
    """An engine's forward over trees; sums up what it read.

    rows_read, queries_read: of all forwards over trees
    """

    rows_read = queries_read = 0

    def _forward(self, rows: Rows, slots: np.ndarray, cache: TreeCache, before: np.ndarray,
                 tree: Tree) -> ForwardOutput:
        if not tree.depth:
            return super()._forward(rows, slots, cache, before, tree)
        of_row, chains, at = _paths(tree)
        wide = self._wide(rows, cache, before, of_row)
        logits = self.target.forward(wide, chains.to(self.target.device), before[of_row])
        row = np.searchsorted(tree.starts, np.arange(len(tree)), side="right") - 1
        path = np.searchsorted(chains.starts, at, side="right") - 1
        source = path, before[row] + at - chains.starts[path]
        cache.reserve(int(before.max()) + tree.width)
        cache.copy_from(wide, source, (row, before[row] + np.arange(len(tree)) - tree.starts[row]))
        self.rows_read, self.queries_read = self.rows_read + len(of_row), self.queries_read + len(chains)
        return ForwardOutput(tree.to(self.target.device), logits[at])

    def _wide(self, rows: Rows, cache: TreeCache, before: np.ndarray, of_row: np.ndarray) -> TreeCache:
        """A cache in which slot m holds the text of the row of path m, int64 (M,), up to its root."""
        found = getattr(self, "_cache_of_paths", None)
        if found is None or found.slots < len(of_row):
            found = self._cache_of_paths = self.target.new_cache(len(of_row))
            self._held: list[tuple] = [(None, 0)] * len(of_row)  # request, tokens of it
        found.reserve(int(before.max()) + 1)
        lacking = []
        for slot, row in enumerate(of_row.tolist()):
            request, read = self._held[slot]
            read = read if request is rows.requests[row] else 0
            columns = np.arange(read, before[row])
            lacking.append((np.full(len(columns), row), np.full(len(columns), slot), columns))
            self._held[slot] = rows.requests[row], int(before[row]) + 1  # the root, too, is every path's
        sources, slots, columns = map(np.concatenate, zip(*lacking, strict=True))
        found.copy_from(cache, (sources, columns), (slots, columns))
        return found


class PathsEngine(_ByPaths, Engine):
    """Strict decoding."""


class SamplingPathsEngine(_ByPaths, SamplingEngine):
    """Sampling."""


def _paths(tree: Tree) -> tuple[np.ndarray, Tree, np.ndarray]:
    """Of trees the row of each path, int64 (M,), the paths as rows, and for each query, int64 (T,), one of
    theirs that stands for it.
    """
    tokens, parents, depths, starts = tree.host
    leaf = np.ones(len(tree), np.bool_)
    leaf[parents[depths > 0]] = False
    leaves = np.flatnonzero(leaf)
    chain, at = np.zeros((len(leaves), tree.depth), np.int32), np.zeros(len(tree), np.int64)
    _follow(leaves, tokens, parents, depths, chain, at)
    sizes = depths[leaves].astype(np.int32)
    line = np.broadcast_to(np.arange(tree.depth, dtype=np.int32) - 1, chain.shape)
    of_row = np.searchsorted(starts, leaves, side="right") - 1
    drafts = DraftBatch(chain, np.ascontiguousarray(line), sizes, None, None)
    return of_row, build(tokens[starts[of_row]], drafts, sizes), at


@numba.njit(cache=True)
def _follow(leaves, tokens, parents, depths, chain, at):
    """Tokens of each path, and of each query where it stands in its last path."""
    start = 0
    for m, leaf in enumerate(leaves):
        node = leaf
        while depths[node] > 0:
            chain[m, depths[node] - 1] = tokens[node]
            at[node] = start + depths[node]
            node = parents[node]
        at[node] = start
        start += depths[leaf] + 1
