"""The best candidates of one growing tree, and the table that adds up one node's continuations."""

from collections import namedtuple

import numpy as np

from pools.jit import array_at, compiled, inlined

SLOTS = 4096  # of the table of one node's continuations; a power of two

# used               int32 (SLOTS,)  slots in use, in order of appearance
# stamps             int64 (SLOTS,)  which node a slot belongs to
# tokens, shares, sources (SLOTS,)   a continuation, its probability, its nearest source
Table = namedtuple("Table", "used stamps tokens shares sources")

# queue              int32 (K,)      places of the open candidates, best first, in [head, tail)
# scores, parents, tokens, sources (K,)  the candidate in a place
Frontier = namedtuple("Frontier", "queue scores parents tokens sources")


@compiled
def table(at):
    return Table(array_at(at[0], SLOTS, np.int32), array_at(at[1], SLOTS, np.int64),
                 array_at(at[2], SLOTS, np.int32), array_at(at[3], SLOTS, np.float64),
                 array_at(at[4], SLOTS, np.uint8))


@compiled
def frontier(at, nodes):
    n = nodes + 1
    return Frontier(array_at(at[0], n, np.int32), array_at(at[1], n, np.float64),
                    array_at(at[2], n, np.int32), array_at(at[3], n, np.int32), array_at(at[4], n, np.uint8))


@inlined
def add(t, stamp, size, token, share, source):
    """Add ``share`` to a continuation's probability; return how many continuations there are.

    Past half of the table new ones are dropped: that many cannot all matter.
    """
    slot = (token * 2654435761 >> 7) & (SLOTS - 1)
    while t.stamps[slot] == stamp and t.tokens[slot] != token:
        slot = (slot + 1) & (SLOTS - 1)
    if t.stamps[slot] == stamp:
        t.shares[slot] += share
        t.sources[slot] = min(t.sources[slot], source)
        return size
    if size >= SLOTS // 2:
        return size
    t.stamps[slot] = stamp
    t.tokens[slot] = token
    t.shares[slot] = share
    t.sources[slot] = source
    t.used[size] = slot
    return size + 1


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
    """Keep a candidate if it is among the best ``room``; return the new tail and free place."""
    if tail - head >= room:
        place = f.queue[tail - 1]
        if not _before(f, place, score, parent, token):
            return tail, free
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
    return tail + 1, free
