"""The compiled drafter: best-first growth of one draft tree per row, and its scratch memory.

Scratch arrays are passed one by one: numba counts references again for a tuple of tuples, which makes a call
50 % slower.
"""

import threading

import numpy as np

from pools import blend, frontier, live
from pools.intervals import MAX_RUNS
from pools.jit import array_at, compiled, helper, inlined, unowned
from pools.lookup import pool_at
from pools.match import longest_match
from pools.tree import ROOT

CHILD_RANK_SHARE = 0.5  # expand a node only if a child with this share of its score would enter the tree
CHILD_SCORE_SHARE = 0.7  # and would reach the minimum score: looking up children dominates the run time
SUFFIXES_PER_NODE = 3  # suffixes read per node of the budget, if all of the weight is left
_local = threading.local()


@compiled
def draft_rows(begin, end, memory, context, lengths, prompts, budgets, depths, deepest, min_score,
               row_pools, pseudo_counts, window, tokens, parents, sizes, scores, sources):
    """Fill the trees of rows [begin, end). S pools per row, M context orders; other shapes as in
    ``pools.draft``.

    Parameters
    ----------
    memory : int64 (n,)
        ``scratch(N, S, M)`` of this thread.
    deepest
        Maximum path length of all rows.
    min_score
        Nodes with a lower score are left out.
    row_pools : int64 (R, S)
        ``Index.address`` of each pool, nearest first; 0: none.
    pseudo_counts : float64 (kinds, M + 1)
        By SOURCE_* and context order; negative: the weights of the pool.
    window
        Tokens of the row in the temporary branch; 0: no temporary branch.
    """
    context, row_pools = unowned(context), unowned(row_pools)
    pseudo_counts, tokens, parents = unowned(pseudo_counts), unowned(tokens), unowned(parents)
    scores, sources = unowned(scores), unowned(sources)
    nodes = tokens.shape[1]
    stamps = array_at(memory[0], 2, np.int64)  # of rows and nodes: unique, also across calls
    slots = row_pools.shape[1]
    b = live.branch(memory[1:7])
    t = frontier.table(memory[7:13], slots)
    f = frontier.frontier(memory[13:20], nodes, slots)
    z = blend.state(memory[20:36], slots, pseudo_counts.shape[1] - 1)
    depth = array_at(memory[36], nodes + 1, np.int32)
    depth[0] = 0
    for r in range(begin, end):
        stamps[0] += 1
        budget = min(budgets[r], nodes)
        limit = min(depths[r], deepest)
        grow = lengths[r] > 0 and budget > 0 and limit > 0
        sizes[r] = _grow(z, b, t, f, stamps, depth, row_pools[r], pseudo_counts, window, context[r],
                         lengths[r], prompts[r], budget, limit, min_score, grow, tokens[r], parents[r],
                         scores[r], sources[r])
        tokens[r, sizes[r]:], parents[r, sizes[r]:] = 0, ROOT
        scores[r, sizes[r]:], sources[r, sizes[r]:] = 0, 0


@inlined
def _grow(z, b, t, f, stamps, depth, row_pools, pseudo_counts, window, context, length, prompt, budget,
          deepest, min_score, grow, tokens, parents, scores, sources):
    """Fill one row's tree and return its number of nodes.

    ``depth`` int32 (K + 1,) is scratch: the depth of node j is at j + 1, that of the root at 0.
    """
    size, head, tail, free, start = 0, 0, 0, 0, 0
    node, score = ROOT, 1.0
    if grow and window > 0:
        start = live.chain(b, context, length, window, stamps[0])
    while grow:
        candidates = _expand(z, b, t, stamps, row_pools, pseudo_counts, window, context, length, prompt,
                             start, node, tokens, parents, score * SUFFIXES_PER_NODE * budget)
        for j in range(candidates):
            if score * t.shares[j] < min_score:
                continue
            tail, free, place = frontier.offer(f, head, tail, free, budget - size, score * t.shares[j], node,
                                               t.tokens[j], t.sources[j])
            if place >= 0:
                for s in range(row_pools.size):
                    f.at[place, s], f.orders[place, s] = t.at[j, s], t.orders[j, s]
        grow = False
        while head < tail and size < budget and not grow:  # add the best candidates until one can be expanded
            best = f.queue[head]
            head += 1
            node, score = size, f.scores[best]
            tokens[node], parents[node] = f.tokens[best], f.parents[best]
            scores[node], sources[node] = score, f.sources[best]
            depth[node + 1] = depth[f.parents[best] + 1] + 1
            size += 1
            child_excluded = (tail - head >= budget - size and tail > head
                              and CHILD_RANK_SHARE * score <= f.scores[f.queue[tail - 1]])
            grow = (size < budget and depth[node + 1] < deepest and not child_excluded
                    and CHILD_SCORE_SHARE * score >= min_score)
            if grow:
                for s in range(row_pools.size):
                    z.at[s], z.orders[s] = f.at[best, s], f.orders[best, s]
    return size


@inlined
def _expand(z, b, t, stamps, row_pools, pseudo_counts, window, context, length, prompt, start, node, tokens,
            parents, max_reads):
    """Sum the continuations of a node in the table ``t`` and return their number."""
    known = _fill_history(z.history, tokens, parents, node, context, length)
    for s in range(row_pools.size):
        if row_pools[s] != 0:
            if node == ROOT:
                longest_match(z, pool_at(row_pools[s]), s, known)
            elif z.orders[s] == 0:
                blend.known_in(z, pool_at(row_pools[s]), s, tokens[node])
    matches = 0
    if window > 0:
        matches = live.occurrences(b, context, length, prompt, start, z.history, known, stamps[0])
    stamps[1] += 1
    return blend.continuations(z, b, t, stamps[1], row_pools, pseudo_counts, matches, max_reads)


@helper
def _fill_history(history, tokens, parents, node, buffer, length):
    """Fill ``history`` with the tokens up to a node, nearest first, and return their number.

    They come from the node's path and then from the row's text.
    """
    known = 0
    while node != ROOT and known < history.size:
        history[known] = tokens[node]
        known += 1
        node = parents[node]
    at = length - 1
    while known < history.size and at >= 0:
        history[known] = buffer[at]
        known += 1
        at -= 1
    return known


def scratch(nodes: int, pools: int, orders: int) -> np.ndarray:
    """Return the int64 addresses of this thread's scratch arrays, in the order of ``draft_rows``.

    The arrays are reused until the thread ends or requests another shape.
    """
    shape = (nodes, pools, orders)
    if getattr(_local, "shape", None) != shape:
        _local.arrays = _arrays(*shape)
        _local.addresses = np.array([array.ctypes.data for array in _local.arrays], np.int64)
        _local.shape = shape
    return _local.addresses


def _arrays(nodes: int, pools: int, orders: int) -> list[np.ndarray]:
    def zeros(kind, *shape):
        return np.zeros(shape, kind)

    i32, i64, f64, u8 = np.int32, np.int64, np.float64, np.uint8
    n, m = nodes + 1, frontier.MAX_CONTINUATIONS
    return [
        zeros(i64, 2),
        # live.Branch
        zeros(i64, live.SLOTS), zeros(i64, 1), zeros(i32, live.MAX_WINDOW),
        zeros(i32, live.LIMIT), zeros(i32, live.LIMIT), zeros(u8, live.LIMIT),
        # frontier.Table
        zeros(i64, frontier.SLOTS), zeros(i32, m), zeros(f64, m), zeros(u8, m), zeros(i32, m, pools),
        zeros(i32, m, pools),
        # frontier.Frontier
        zeros(i32, n), zeros(f64, n), zeros(i32, n), zeros(i32, n), zeros(u8, n), zeros(i32, n, pools),
        zeros(i32, n, pools),
        # blend.State
        zeros(i32, orders), zeros(i32, pools), zeros(i32, pools), zeros(i32, pools), zeros(i64, pools),
        zeros(f64, pools), zeros(i32, pools), zeros(i32, pools), zeros(i32, pools),
        zeros(i32, pools, MAX_RUNS), zeros(i32, pools, MAX_RUNS), zeros(i32, pools, MAX_RUNS),
        zeros(i32, 2, orders + 1), zeros(i32, 2, orders + 1), zeros(f64, 2, orders + 1), zeros(i64, orders),
        # depth of each node
        zeros(i32, n),
    ]
