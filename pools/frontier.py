"""The best candidates of a growing tree, and the hash table that sums the continuations of one node."""

from collections import namedtuple

import numpy as np

from pools.jit import array_at, helper, inlined

_BITS = 11
MAX_CONTINUATIONS = 1 << _BITS  # per node
SLOTS = 2 * MAX_CONTINUATIONS

# Continuations of one node, C = MAX_CONTINUATIONS, S pools per row:
# places             int64 (SLOTS,)  hash table: node stamp and the token's position in the arrays below
# tokens, shares, sources (C,)       token of the continuation, its probability, its nearest source
# at, orders         int32 (C, S)    per pool, a suffix that begins with the last ``orders`` tokens
Table = namedtuple("Table", "places tokens shares sources at orders")

# Candidates of one tree, K = nodes + 1:
# queue              int32 (K,)      positions in the arrays below, best candidate first, in [head, tail)
# scores, parents, tokens, sources (K,)  the candidate
# at, orders         int32 (K, S)    as in the table
Frontier = namedtuple("Frontier", "queue scores parents tokens sources at orders")


@helper
def table(at, pools):
    """A ``Table`` of S = ``pools`` pools over memory at the addresses ``at``, int64 (6,)."""
    n = MAX_CONTINUATIONS
    return Table(array_at(at[0], SLOTS, np.int64), array_at(at[1], n, np.int32),
                 array_at(at[2], n, np.float64), array_at(at[3], n, np.uint8),
                 array_at(at[4], (n, pools), np.int32), array_at(at[5], (n, pools), np.int32))


@helper
def frontier(at, nodes, pools):
    """A ``Frontier`` of K = ``nodes`` + 1 candidates over memory at the addresses ``at``, int64 (7,)."""
    n = nodes + 1
    return Frontier(array_at(at[0], n, np.int32), array_at(at[1], n, np.float64),
                    array_at(at[2], n, np.int32), array_at(at[3], n, np.int32), array_at(at[4], n, np.uint8),
                    array_at(at[5], (n, pools), np.int32), array_at(at[6], (n, pools), np.int32))


@inlined
def add(t, stamp, size, token, share, source):
    """Add ``share`` to a continuation's probability.

    Parameters
    ----------
    t : Table
    stamp : int
        Number of the node, unique while ``t`` is used.
    size : int
        Number of continuations so far.
    token : int
    share : float
    source : int
        A constant SOURCE_... of ``pools.tree``; the smaller one counts.

    Returns
    -------
    size, place : int
        Number of continuations, and position of this one; -1: dropped, because ``t`` is full.
    """
    slot = (token * 2654435761 >> 7) & (SLOTS - 1)
    while t.places[slot] >> _BITS == stamp and t.tokens[t.places[slot] & (MAX_CONTINUATIONS - 1)] != token:
        slot = (slot + 1) & (SLOTS - 1)
    if t.places[slot] >> _BITS == stamp:
        place = t.places[slot] & (MAX_CONTINUATIONS - 1)
        t.shares[place] += share
        t.sources[place] = min(t.sources[place], source)
        return size, place
    if size >= MAX_CONTINUATIONS:
        return size, -1
    t.places[slot] = stamp << _BITS | size
    t.tokens[size] = token
    t.shares[size] = share
    t.sources[size] = source
    t.orders[size, :] = 0
    return size + 1, size


@helper
def _before(f, place, score, parent, token):
    """Whether a candidate precedes the one at ``place``: by higher score, earlier parent, smaller token."""
    if score != f.scores[place]:
        return score > f.scores[place]
    if parent != f.parents[place]:
        return parent < f.parents[place]
    return token < f.tokens[place]


@inlined
def offer(f, head, tail, free, capacity, score, parent, token, source):
    """Queue a candidate if it is among the best ``capacity``.

    Parameters
    ----------
    f : Frontier
    head, tail : int
        Part of ``f.queue`` in use.
    free : int
        First position of the other arrays that was never used.
    capacity : int
        Maximum length of the queue.
    score : float
    parent, token, source : int

    Returns
    -------
    tail, free, place : int
        The new tail and free position, and the candidate's position; -1: not queued.
    """
    if tail - head >= capacity:
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
