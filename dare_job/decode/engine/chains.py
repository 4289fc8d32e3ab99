"""Chains of draft tokens, for models whose layers keep a state that the branches of a tree cannot share."""

import numba
import numpy as np

from pools.tree import DraftBatch


def best_chains(drafts: DraftBatch) -> DraftBatch:
    """Return each row's path with the largest sum of scores, its expected number of accepted tokens.

    A node's score is the probability that the path to it is accepted. Of equal paths the first is kept.
    """
    if not drafts.nodes:
        return drafts
    shape = drafts.tokens.shape
    tokens, sizes = np.zeros(shape, np.int32), np.zeros(drafts.rows, np.int32)
    scores, sources = np.zeros(shape, np.float32), np.zeros(shape, np.uint8)
    _fill(drafts.tokens, drafts.parents, drafts.sizes, drafts.scores, drafts.sources, tokens, scores, sources,
          sizes)
    parents = np.broadcast_to(np.arange(-1, shape[1] - 1, dtype=np.int32), shape)
    return DraftBatch(tokens, parents, sizes, scores, sources)


@numba.njit(cache=True)
def _fill(tokens, parents, sizes, scores, sources, chains, chain_scores, chain_sources, chain_sizes):
    count = tokens.shape[1]
    values, best = np.empty(count + 1), np.empty(count + 1, np.int64)  # of the paths below; root first
    for r in range(len(sizes)):
        values[:] = 0
        best[:] = -1
        for i in range(sizes[r] - 1, -1, -1):  # children come after their parents
            value, parent = scores[r, i] + values[i + 1], parents[r, i] + 1
            if value >= values[parent]:
                values[parent], best[parent] = value, i
        node = best[0]
        while node >= 0:
            at = chain_sizes[r]
            chains[r, at], chain_scores[r, at] = tokens[r, node], scores[r, node]
            chain_sources[r, at] = sources[r, node]
            chain_sizes[r] += 1
            node = best[node + 1]
