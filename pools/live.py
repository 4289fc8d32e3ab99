"""Temporary branch of a request: its own prompt and text so far, searched in place.

Nothing is kept between calls: the row's token buffer is the branch, and it ends with the request. One
backward pass chains equal tokens of the last ``window`` positions; an occurrence of a context is then found
by walking the chain of the context's last token. Only the ``LIMIT`` nearest occurrences count.
"""

from collections import namedtuple

import numpy as np

from pools.jit import array_at, compiled, inlined

LIMIT = 32
SLOTS = 8192  # of the token table; a power of two, at least twice the longest window
MAX_WINDOW = SLOTS // 2

# keys, heads    int32 (SLOTS,)   table: token -> its last position, valid where stamps == the row's stamp
# stamps         int64 (SLOTS,)
# before         int32 (window,)  before[p - first]: the previous position of the token at p, or -1
# nexts, orders  int32 (LIMIT,)   occurrences of one context: token after it, tokens that match
# prompted       uint8 (LIMIT,)   whether the token after it is the prompt's
Branch = namedtuple("Branch", "keys heads stamps before nexts orders prompted")


@compiled
def branch(at):
    return Branch(array_at(at[0], SLOTS, np.int32), array_at(at[1], SLOTS, np.int32),
                  array_at(at[2], SLOTS, np.int64), array_at(at[3], MAX_WINDOW, np.int32),
                  array_at(at[4], LIMIT, np.int32), array_at(at[5], LIMIT, np.int32),
                  array_at(at[6], LIMIT, np.uint8))


@compiled
def _slot(b, token, stamp):
    """The token's slot in the open-addressed table, or the free one where it belongs."""
    slot = (token * 2654435761 >> 7) & (SLOTS - 1)
    while b.stamps[slot] == stamp and b.keys[slot] != token:
        slot = (slot + 1) & (SLOTS - 1)
    return slot


@compiled
def chain(b, buffer, length, window, stamp):
    """Chain equal tokens of ``buffer[first:length]``; return ``first``. ``stamp`` must be new."""
    first = max(0, length - window)
    for p in range(first, length):
        slot = _slot(b, buffer[p], stamp)
        if b.stamps[slot] == stamp:
            b.before[p - first] = b.heads[slot]
        else:
            b.stamps[slot] = stamp
            b.keys[slot] = buffer[p]
            b.before[p - first] = -1
        b.heads[slot] = p
    return first


@inlined
def occurrences(b, buffer, length, prompt, first, history, known, stamp):
    """Fill ``b`` with what followed a node's context, nearest first; return how many.

    prompt   tokens of the row that are its prompt's
    history  int32 (H,)  the node's own token and those before it, nearest first; ``known`` of them
    """
    slot = _slot(b, history[0], stamp)
    if b.stamps[slot] != stamp:
        return 0
    found = 0
    p = b.heads[slot]
    while p >= 0 and found < LIMIT:
        if p + 1 < length:
            order = 1
            while order < known and p - order >= first and buffer[p - order] == history[order]:
                order += 1
            b.nexts[found] = buffer[p + 1]
            b.orders[found] = order
            b.prompted[found] = p + 1 < prompt
            found += 1
        p = b.before[p - first]
    return found
