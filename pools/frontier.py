"""The best candidates of one growing tree, and the table that adds up one node's continuations."""

from collections import namedtuple

import numpy as np

from pools.jit import array_at, compiled, inlined

SLOTS = 4096  # of the table of one node's continuations; a power of two

# used               int32 (SLOTS,)  slots in use, in order of appearance
# stamps             int64 (SLOTS,)  which node a slot belongs to
# tokens, shares, sources (SLOTS,)   a continuation, its probability, its nearest source
# at, orders  int32 (SLOTS, S)       of each pool a suffix that begins with the last ``orders`` tokens
Table = namedtuple("Table", "used stamps tokens shares sources at orders")

# queue              int32 (K,)      places of the open candidates, best first, in [head, tail)
# scores, parents, tokens, sources (K,)  the candidate in a place
# at, orders         int32 (K, S)    as in the table
Frontier = namedtuple("Frontier", "queue scores parents tokens sources at orders")


@compiled
def table(at, pools):
    return Table(array_at(at[0], SLOTS, np.int32), array_at(at[1], SLOTS, np.int64),
                 array_at(at[2], SLOTS, np.int32), array_at(at[3], SLOTS, np.float64),
                 array_at(at[4], SLOTS, np.uint8),
                 array_at(at[5], (SLOTS, pools), np.int32), array_at(at[6], (SLOTS, pools), np.int32))


@compiled
def frontier(at, nodes, pools):
    n = nodes + 1
    return Frontier(array_at(at[0], n, np.int32), array_at(at[1], n, np.float64),
                    array_at(at[2], n, np.int32), array_at(at[3], n, np.int32), array_at(at[4], n, np.uint8),
                    array_at(at[5], (n, pools), np.int32), array_at(at[6], (n, pools), np.int32))


@inlined
def add(t, stamp, size, token, share, source):
    """Add ``share`` to a continuation's probability; return how many continuations there are, and its slot.

    Past half of the table new ones are dropped (slot -1): that many cannot all matter.
    """
    slot = (token * 2654435761 >> 7) & (SLOTS - 1)
    while t.stamps[slot] == stamp and t.tokens[slot] != token:
        slot = (slot + 1) & (SLOTS - 1)
    if t.stamps[slot] == stamp:
        t.shares[slot] += share
        t.sources[slot] = min(t.sources[slot], source)
        return size, slot
    if size >= SLOTS // 2:
        return size, -1
    t.stamps[slot] = stamp
    t.tokens[slot] = token
    t.shares[slot] = share
    t.sources[slot] = source
    t.orders[slot, :] = 0
    t.used[size] = slot
    return size + 1, slot


@compiled
def _before(f, place, score, parent, token):
    """Whether a candidate comes before the one in ``place``: higher score, earlier parent, smaller token."""
    if score != f.scores[place]:
        return score > f.scores[place]
    if parent != f.parents[place]:
        return parent < f.parents[place]
    return token < f.tokens[place]


@inlined
def offer(f, head, tail, free, room, score, parent, token, source):
    """Keep a candidate if it is among the best ``room``; return new tail, free place, its own place or -1."""
    if tail - head >= room:
        place = f.queue[tail - 1]
        if not _before(f, place, score, parent, token):
            return tail, free, -1
        tail -= 1
    else:
        place = free
        free += 1
    at = tail
    while at > head and _before(f, f.queue[at - 1], score, parent, token):
        f.queue[at] = f.queue[at - 1]
        at -= 1
    f.queue[at] = place
    f.scores[place] = score
    f.parents[place] = parent
    f.tokens[place] = token
    f.sources[place] = source
    return tail + 1, free, place
