"""The compiled drafter: best-first growth of one tree a row, blended over context orders and sources."""

import numpy as np

from pools import live
from pools.jit import compiled
from pools.lookup import code_at, code_of, first, locate, narrow, shared_before, token_of
from pools.tree import ROOT, SOURCE_LIVE

SAMPLES = 96  # continuations read from an interval; longer ones are read at even distances
SLOTS = 4096  # of the table of one node's candidates; a power of two
FLOOR = 1 / 512  # sets of continuations with less weight than this are not read


@compiled
def draft_rows(begin, end, context, lengths, budgets, depths, pools, row_pools, row_kinds, lambdas, window,
               tokens, parents, sizes, scores, sources):
    """Fill the trees of rows [begin, end). Shapes as in ``pools.draft``; see there for the blend.

    pools      int64 (P, 8)             addresses of every index in use
    row_pools  int32 (R, S)             rows of ``pools``, nearest first; -1: none
    row_kinds  uint8 (R, S)             SOURCE_* of each
    lambdas    float64 (kinds, M + 1)   by SOURCE_* and context order
    window     tokens of the row that the temporary branch covers; 0: no temporary branch
    """
    most, slots = tokens.shape[1], row_pools.shape[1]
    orders = lambdas.shape[1] - 1
    low = np.zeros((most + 1, slots, orders + 1), np.int32)
    count = np.zeros((most + 1, slots, orders + 1), np.int32)
    depth = np.zeros(most + 1, np.int32)
    history = np.zeros(orders, np.int32)
    codes = np.zeros(orders, np.int64)
    gains = np.zeros((slots + 1, orders + 1), np.float64)
    # Temporary branch
    keys, heads, stamps = (np.zeros(live.SLOTS, np.int32), np.zeros(live.SLOTS, np.int32),
                           np.zeros(live.SLOTS, np.int32))
    before = np.zeros(max(1, window), np.int32)
    nexts, matched = np.zeros(live.LIMIT, np.int32), np.zeros(live.LIMIT, np.int32)
    # One node's candidates: a table from token to probability, and the list of slots in use
    seen = np.zeros(SLOTS, np.int64)
    seen_token = np.zeros(SLOTS, np.int32)
    seen_share = np.zeros(SLOTS, np.float64)
    seen_source = np.zeros(SLOTS, np.uint8)
    used = np.zeros(SLOTS, np.int32)
    stamp = 0
    # The best candidates of the tree, best first: queue[head:tail] of at most budget - size
    queue = np.zeros(most + 1, np.int32)
    open_score = np.zeros(most + 1, np.float64)
    open_parent = np.zeros(most + 1, np.int32)
    open_token = np.zeros(most + 1, np.int32)
    open_source = np.zeros(most + 1, np.uint8)

    for r in range(begin, end):
        length, budget = lengths[r], min(budgets[r], most)
        sizes[r] = 0
        if length <= 0 or budget <= 0 or depths[r] <= 0:
            continue
        buffer = context[r]
        start = 0
        if window > 0:
            start = live.chain(buffer, length, window, keys, heads, stamps, r + 1, before)
        size, head, tail, free = 0, 0, 0, 0
        node, score = ROOT, 1.0
        while True:
            # State of the node in row node + 1; the root's is row 0
            state = node + 1
            known = 0
            up = node
            while up != ROOT and known < orders:
                history[known] = tokens[r, up]
                known += 1
                up = parents[r, up]
            tail_at = length - 1
            while known < orders and tail_at >= 0:
                history[known] = buffer[tail_at]
                known += 1
                tail_at -= 1
            for s in range(slots):
                if row_pools[r, s] < 0:
                    count[state, s, 1] = 0
                    continue
                a = pools[row_pools[r, s]]
                if node == ROOT:
                    _enter(a, history, known, codes, low[0, s], count[0, s])
                else:
                    above = parents[r, node] + 1
                    _descend(a, tokens[r, node], low[above, s], count[above, s], low[state, s], count[state, s])
            found = 0
            if window > 0:
                found = live.occurrences(buffer, length, start, history, known, keys, heads, stamps, r + 1,
                                         before, nexts, matched)
            # Share of each order and source: prediction by partial matching, nearest source first
            gains[:, :] = 0.0
            weight = 1.0
            for n in range(orders, 0, -1):
                c = 0
                for j in range(found):
                    if matched[j] >= n:
                        c += 1
                if c > 0:
                    gains[slots, n] = weight * c / (c + lambdas[SOURCE_LIVE, n])
                    weight -= gains[slots, n]
                for s in range(slots):
                    if count[state, s, 1] == 0:
                        continue
                    c = count[state, s, n]
                    if c > 0:
                        gains[s, n] = weight * c / (c + lambdas[row_kinds[r, s], n])
                        weight -= gains[s, n]
            # Read the continuations
            stamp += 1
            candidates = 0
            for j in range(found):
                share = 0.0
                for n in range(1, matched[j] + 1):
                    if gains[slots, n] > 0:
                        c = 0
                        for i in range(found):
                            if matched[i] >= n:
                                c += 1
                        share += gains[slots, n] / c
                candidates = _add(nexts[j], share, SOURCE_LIVE, seen, stamp, seen_token, seen_share, seen_source,
                                  used, candidates)
            for s in range(slots):
                n = orders
                while n > 0 and count[state, s, 1] > 0:
                    c = count[state, s, n]
                    gain = gains[s, n]
                    while n > 1 and count[state, s, n - 1] == c:  # the same occurrences: read once
                        n -= 1
                        gain += gains[s, n]
                    if c > 0 and gain >= FLOOR:
                        candidates = _read(pools[row_pools[r, s]], low[state, s, n], c, n, gain, row_kinds[r, s],
                                           seen, stamp, seen_token, seen_share, seen_source, used, candidates)
                    n -= 1
            # Keep those that can still be among the best
            for j in range(candidates):
                slot = used[j]
                value = score * seen_share[slot]
                room = budget - size
                if tail - head >= room:
                    last = queue[tail - 1]
                    if not _better(value, node, seen_token[slot], open_score[last], open_parent[last],
                                   open_token[last]):
                        continue
                    place = last
                    tail -= 1
                else:
                    place = free
                    free += 1
                open_score[place] = value
                open_parent[place] = node
                open_token[place] = seen_token[slot]
                open_source[place] = seen_source[slot]
                at = tail
                while at > head and _better(value, node, seen_token[slot], open_score[queue[at - 1]],
                                            open_parent[queue[at - 1]], open_token[queue[at - 1]]):
                    queue[at] = queue[at - 1]
                    at -= 1
                queue[at] = place
                tail += 1
            # Take the best as the next node; find one worth growing
            grow = False
            while head < tail and size < budget and not grow:
                best = queue[head]
                head += 1
                node, score = size, open_score[best]
                tokens[r, size] = open_token[best]
                parents[r, size] = open_parent[best]
                scores[r, size] = score
                sources[r, size] = open_source[best]
                depth[size + 1] = depth[open_parent[best] + 1] + 1
                size += 1
                full = tail - head >= budget - size
                beaten = full and size < budget and score <= open_score[queue[tail - 1]]
                grow = size < budget and depth[size] < depths[r] and not beaten
            if not grow:
                break
        sizes[r] = size


@compiled
def _better(score, parent, token, other_score, other_parent, other_token):
    """Order of candidates: higher score, then the earlier parent, then the smaller token."""
    if score != other_score:
        return score > other_score
    if parent != other_parent:
        return parent < other_parent
    return token < other_token


@compiled
def _enter(a, history, known, codes, low, count):
    """Intervals of the row's own last tokens, for each order the pool knows."""
    orders = low.size - 1
    count[:] = 0
    for n in range(1, min(known, orders, a[7] - 1) + 1):
        codes[n - 1] = code_of(a, history[n - 1])
        if codes[n - 1] == 0:
            return
        low[n], count[n] = locate(a, codes, n)
        if count[n] == 0:
            return


@compiled
def _descend(a, token, above_low, above_count, low, count):
    """Intervals of a child from its parent's: order n + 1 is part of the parent's order n."""
    orders = min(low.size - 1, a[7] - 1)
    count[:] = 0
    code = code_of(a, token)
    if code == 0:
        return
    low[1], count[1] = first(a, code)
    for n in range(1, orders):
        if above_count[n] == 0:
            return
        if n > 1 and above_count[n] == above_count[n - 1]:  # the same occurrences in the same order
            low[n + 1], count[n + 1] = above_low[n] + low[n] - above_low[n - 1], count[n]
        else:
            low[n + 1], count[n + 1] = narrow(a, above_low[n], above_count[n], n, code)
        if count[n + 1] == 0:
            return


@compiled
def _read(a, low, count, order, gain, kind, seen, stamp, seen_token, seen_share, seen_source, used, candidates):
    """Add the continuations of one interval, each by its share of the occurrences."""
    if count <= SAMPLES:
        i = 0
        while i < count:
            j = i + 1
            while j < count and shared_before(a, low + j) > order:
                j += 1
            code = code_at(a, low + i, order)
            if code != 0:
                candidates = _add(token_of(a, code), gain * (j - i) / count, kind, seen, stamp, seen_token,
                                  seen_share, seen_source, used, candidates)
            i = j
        return candidates
    code, hits = -1, 0
    for i in range(SAMPLES + 1):
        here = -2
        if i < SAMPLES:
            here = code_at(a, low + count * (2 * i + 1) // (2 * SAMPLES), order)
        if here == code:
            hits += 1
            continue
        if code > 0:
            candidates = _add(token_of(a, code), gain * hits / SAMPLES, kind, seen, stamp, seen_token, seen_share,
                              seen_source, used, candidates)
        code, hits = here, 1
    return candidates


@compiled
def _add(token, share, kind, seen, stamp, seen_token, seen_share, seen_source, used, candidates):
    slot = (token * 2654435761 >> 7) & (SLOTS - 1)
    while seen[slot] == stamp and seen_token[slot] != token:
        slot = (slot + 1) & (SLOTS - 1)
    if seen[slot] != stamp:
        if candidates >= SLOTS // 2:
            return candidates
        seen[slot] = stamp
        seen_token[slot] = token
        seen_share[slot] = 0.0
        seen_source[slot] = kind
        used[candidates] = slot
        candidates += 1
    seen_share[slot] += share
    seen_source[slot] = min(seen_source[slot], kind)
    return candidates
