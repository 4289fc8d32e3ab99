"""The compiled drafter: best-first growth of one tree a row.

Scratch arrays are passed one by one: in a tuple of tuples numba counts references again, which makes a call
half as slow again.
"""

import numpy as np

from pools import blend, frontier, live
from pools.entry import enter
from pools.jit import array_at, compiled, inlined, part, unowned
from pools.lookup import pool_at
from pools.tree import ROOT

HOPE = 0.5  # a node grows while a child with this share of it would still come in
WANTED = 0.7  # and a child with this share of it would be wanted: looking for children is what takes the time
WIDE = 3  # suffixes read for each node of the budget, where all is open


@compiled
def draft_rows(begin, end, memory, context, lengths, prompts, budgets, depths, deepest, least,
               row_pools, lambdas, window, tokens, parents, sizes, scores, sources):
    """Fill the trees of rows [begin, end). Shapes as in ``pools.draft``.

    memory     int64 (n,)               ``scratch.scratch(N, S, M)`` of this thread
    deepest    longest path of any row
    least      score under which no node is wanted
    row_pools  int64 (R, S)             ``Index.address`` of each pool, nearest first; 0: none
    lambdas    float64 (kinds, M + 1)   by SOURCE_* and context order; negative: as the pool learned
    window     tokens of the row that the temporary branch covers; 0: no temporary branch
    """
    context, row_pools = unowned(context), unowned(row_pools)
    lambdas, tokens, parents = unowned(lambdas), unowned(tokens), unowned(parents)
    scores, sources = unowned(scores), unowned(sources)
    most = tokens.shape[1]
    stamps = array_at(memory[0], 2, np.int64)  # of rows and nodes: new for each, also in later calls
    slots = row_pools.shape[1]
    b = live.branch(memory[1:7])
    t = frontier.table(memory[7:13], slots)
    f = frontier.frontier(memory[13:20], most, slots)
    z = blend.state(memory[20:35], slots, lambdas.shape[1] - 1)
    depth = array_at(memory[35], most + 1, np.int32)
    depth[0] = 0
    for r in range(begin, end):
        stamps[0] += 1
        budget = min(budgets[r], most)
        limit = min(depths[r], deepest)
        grow = lengths[r] > 0 and budget > 0 and limit > 0
        sizes[r] = _grow(z, b, t, f, stamps, depth, row_pools[r], lambdas, window, context[r], lengths[r],
                         prompts[r], budget, limit, least, grow, tokens[r], parents[r], scores[r],
                         sources[r])
        tokens[r, sizes[r]:], parents[r, sizes[r]:] = 0, ROOT
        scores[r, sizes[r]:], sources[r, sizes[r]:] = 0, 0


@inlined
def _grow(z, b, t, f, stamps, depth, row_pools, lambdas, window, context, length, prompt, budget, deepest,
          least, grow, tokens, parents, scores, sources):
    """Fill one row's tree; return its number of nodes.

    depth  int32 (K + 1,)  scratch: of node j in place j + 1, of the root in place 0
    """
    size, head, tail, free, start = 0, 0, 0, 0, 0
    node, score = ROOT, 1.0
    if grow and window > 0:
        start = live.chain(b, context, length, window, stamps[0])
    while grow:
        candidates = _expand(z, b, t, stamps, row_pools, lambdas, window, context, length, prompt, start,
                             node, tokens, parents, score * WIDE * budget)
        for j in range(candidates):
            if score * t.shares[j] < least:
                continue
            tail, free, place = frontier.offer(f, head, tail, free, budget - size, score * t.shares[j], node,
                                               t.tokens[j], t.sources[j])
            if place >= 0:
                for s in range(row_pools.size):
                    f.at[place, s], f.orders[place, s] = t.at[j, s], t.orders[j, s]
        grow = False
        while head < tail and size < budget and not grow:  # the best become nodes until one can grow
            best = f.queue[head]
            head += 1
            node, score = size, f.scores[best]
            tokens[node], parents[node] = f.tokens[best], f.parents[best]
            scores[node], sources[node] = score, f.sources[best]
            depth[node + 1] = depth[f.parents[best] + 1] + 1
            size += 1
            beaten = (tail - head >= budget - size and tail > head
                      and HOPE * score <= f.scores[f.queue[tail - 1]])
            grow = (size < budget and depth[node + 1] < deepest and not beaten
                    and WANTED * score >= least)
            if grow:
                for s in range(row_pools.size):
                    z.at[s], z.orders[s] = f.at[best, s], f.orders[best, s]
    return size


@inlined
def _expand(z, b, t, stamps, row_pools, lambdas, window, context, length, prompt, start, node, tokens,
            parents, worth):
    """Add up what may follow a node in the table ``t``; return how many tokens."""
    known = _history(z.history, tokens, parents, node, context, length)
    for s in range(row_pools.size):
        if row_pools[s] != 0:
            if node == ROOT:
                enter(z, pool_at(row_pools[s]), s, known)
            elif z.orders[s] == 0:
                blend.known_in(z, pool_at(row_pools[s]), s, tokens[node])
    found = 0
    if window > 0:
        found = live.occurrences(b, context, length, prompt, start, z.history, known, stamps[0])
    stamps[1] += 1
    return blend.continuations(z, b, t, stamps[1], row_pools, lambdas, found, worth)


@part
def _history(history, tokens, parents, node, buffer, length):
    """Tokens at and before a node, nearest first, out of its path and the row; return how many."""
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
