"""Temporary branch of a request: its own prompt and text so far, searched in place.

Nothing is kept between calls: the row's token buffer is the branch, and it ends with the request. One
backward pass chains equal tokens of the last ``window`` positions; an occurrence of a context is then found
by walking the chain of the context's last token. Only the ``LIMIT`` nearest occurrences count.
"""

from collections import namedtuple

import numpy as np

from pools.jit import array_at, inlined, part

LIMIT = 32
_BITS = 12
MAX_WINDOW = 1 << _BITS
SLOTS = 2 * MAX_WINDOW  # of the token table; a short row uses its first part alone, which stays in the cache

# heads          int64 (SLOTS,)   table: of a token its last position less first, under the row's stamp
# mask           int64 (1,)       slots in use, less one
# before         int32 (window,)  before[p - first]: the previous position of the token at p, or -1
# nexts, orders  int32 (LIMIT,)   occurrences of one context: token after it, tokens that match
# prompted       uint8 (LIMIT,)   whether the token after it is the prompt's
Branch = namedtuple("Branch", "heads mask before nexts orders prompted")


@part
def branch(at):
    return Branch(array_at(at[0], SLOTS, np.int64), array_at(at[1], 1, np.int64),
                  array_at(at[2], MAX_WINDOW, np.int32), array_at(at[3], LIMIT, np.int32),
                  array_at(at[4], LIMIT, np.int32), array_at(at[5], LIMIT, np.uint8))


@part
def _slot(b, buffer, first, token, stamp):
    """The token's slot in the open-addressed table, or the free one where it belongs."""
    slot = (token * 2654435761 >> 7) & b.mask[0]
    while b.heads[slot] >> _BITS == stamp and buffer[first + (b.heads[slot] & (MAX_WINDOW - 1))] != token:
        slot = (slot + 1) & b.mask[0]
    return slot


@part
def chain(b, buffer, length, window, stamp):
    """Chain equal tokens of ``buffer[first:length]``; return ``first``. ``stamp`` must be new."""
    first = max(0, length - window)
    slots = 64
    while slots < 2 * (length - first):
        slots *= 2
    b.mask[0] = slots - 1
    for p in range(first, length):
        slot = _slot(b, buffer, first, buffer[p], stamp)
        head = b.heads[slot]
        b.before[p - first] = first + (head & (MAX_WINDOW - 1)) if head >> _BITS == stamp else -1
        b.heads[slot] = stamp << _BITS | p - first
    return first


@inlined
def occurrences(b, buffer, length, prompt, first, history, known, stamp):
    """Fill ``b`` with what followed a node's context, nearest first; return how many.

    prompt   tokens of the row that are its prompt's
    history  int32 (H,)  the node's own token and those before it, nearest first; ``known`` of them
    """
    head = b.heads[_slot(b, buffer, first, history[0], stamp)]
    if head >> _BITS != stamp:
        return 0
    found = 0
    p = first + (head & (MAX_WINDOW - 1))
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
