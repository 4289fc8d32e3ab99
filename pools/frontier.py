"""The best candidates of one growing tree, and the table that adds up one node's continuations."""

from collections import namedtuple

import numpy as np

from pools.jit import array_at, inlined, part

_BITS = 11
MOST = 1 << _BITS  # continuations of one node
SLOTS = 2 * MOST

# places             int64 (SLOTS,)  table: a token's place in the arrays below, under the node's stamp
# tokens, shares, sources (MOST,)    a continuation, its probability, its nearest source
# at, orders         int32 (MOST, S) of each pool a suffix that begins with the last ``orders`` tokens
Table = namedtuple("Table", "places tokens shares sources at orders")

# queue              int32 (K,)      places of the open candidates, best first, in [head, tail)
# scores, parents, tokens, sources (K,)  the candidate in a place
# at, orders         int32 (K, S)    as in the table
Frontier = namedtuple("Frontier", "queue scores parents tokens sources at orders")


@part
def table(at, pools):
    return Table(array_at(at[0], SLOTS, np.int64), array_at(at[1], MOST, np.int32),
                 array_at(at[2], MOST, np.float64), array_at(at[3], MOST, np.uint8),
                 array_at(at[4], (MOST, pools), np.int32), array_at(at[5], (MOST, pools), np.int32))


@part
def frontier(at, nodes, pools):
    n = nodes + 1
    return Frontier(array_at(at[0], n, np.int32), array_at(at[1], n, np.float64),
                    array_at(at[2], n, np.int32), array_at(at[3], n, np.int32), array_at(at[4], n, np.uint8),
                    array_at(at[5], (n, pools), np.int32), array_at(at[6], (n, pools), np.int32))


@inlined
def add(t, stamp, size, token, share, source):
    """Add ``share`` to a continuation's probability; return how many continuations there are, and its place.

    Past ``MOST`` new ones are dropped (place -1): that many cannot all matter.
    """
    slot = (token * 2654435761 >> 7) & (SLOTS - 1)
    while t.places[slot] >> _BITS == stamp and t.tokens[t.places[slot] & (MOST - 1)] != token:
        slot = (slot + 1) & (SLOTS - 1)
    if t.places[slot] >> _BITS == stamp:
        place = t.places[slot] & (MOST - 1)
        t.shares[place] += share
        t.sources[place] = min(t.sources[place], source)
        return size, place
    if size >= MOST:
        return size, -1
    t.places[slot] = stamp << _BITS | size
    t.tokens[size] = token
    t.shares[size] = share
    t.sources[size] = source
    t.orders[size, :] = 0
    return size + 1, size


@part
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
