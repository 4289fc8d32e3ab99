"""Temporary branch of a request (DARE): its prompt and text so far, searched in place.

The row's token buffer is the branch; nothing is kept between calls. One pass links equal tokens of the last
``window`` positions into chains. The occurrences of a context are found on the chain of its last token. Only
the ``LIMIT`` nearest occurrences count.
"""

from collections import namedtuple

import numpy as np

from pools.jit import array_at, helper, inlined

LIMIT = 64
_BITS = 12
MAX_WINDOW = 1 << _BITS
SLOTS = 2 * MAX_WINDOW  # of the token table; short rows use only the first part, to stay in the CPU cache

# heads          int64 (SLOTS,)   open-addressed table: row stamp and a token's last position minus ``first``
# mask           int64 (1,)       slots in use minus 1
# previous       int32 (window,)  previous[p - first]: the previous position of the token at p, or -1
# nexts, orders  int32 (LIMIT,)   per occurrence of a context: the next token, the number of tokens that match
# prompted       uint8 (LIMIT,)   whether the next token belongs to the prompt
Branch = namedtuple("Branch", "heads mask previous nexts orders prompted")


@helper
def branch(at):
    """View the memory at the addresses ``at``, int64 (6,), as the six arrays of a branch."""
    return Branch(array_at(at[0], SLOTS, np.int64), array_at(at[1], 1, np.int64),
                  array_at(at[2], MAX_WINDOW, np.int32), array_at(at[3], LIMIT, np.int32),
                  array_at(at[4], LIMIT, np.int32), array_at(at[5], LIMIT, np.uint8))


@helper
def _slot(b, buffer, first, token, stamp):
    """The token's slot in the table, or the free slot to insert it."""
    slot = (token * 2654435761 >> 7) & b.mask[0]
    while b.heads[slot] >> _BITS == stamp and buffer[first + (b.heads[slot] & (MAX_WINDOW - 1))] != token:
        slot = (slot + 1) & b.mask[0]
    return slot


@helper
def chain(b, buffer, length, window, stamp):
    """Link equal tokens of the last ``window`` positions.

    Parameters
    ----------
    b : Branch
    buffer : int array (at least length,)
        The row's tokens.
    length : int
        Number of tokens in the buffer.
    window : int
        At most ``MAX_WINDOW``.
    stamp : int
        Number of this call, unique for the branch.

    Returns
    -------
    int
        First position that is linked.
    """
    first = max(0, length - window)
    slots = 64
    while slots < 2 * (length - first):
        slots *= 2
    b.mask[0] = slots - 1
    for p in range(first, length):
        slot = _slot(b, buffer, first, buffer[p], stamp)
        head = b.heads[slot]
        b.previous[p - first] = first + (head & (MAX_WINDOW - 1)) if head >> _BITS == stamp else -1
        b.heads[slot] = stamp << _BITS | p - first
    return first


@inlined
def occurrences(b, buffer, length, prompt, first, history, known, stamp):
    """Fill ``b`` with the occurrences of a node's context, nearest first.

    Parameters
    ----------
    b : Branch
        Linked by ``chain``.
    buffer : int array (at least length,)
    length : int
    prompt : int
        Number of prompt tokens in the row.
    first, stamp : int
        As returned by and given to ``chain``.
    history : int32 (H,)
        The node's token and the ``known`` - 1 tokens before it, nearest first.
    known : int

    Returns
    -------
    int
        Number of occurrences, at most ``LIMIT``.
    """
    head = b.heads[_slot(b, buffer, first, history[0], stamp)]
    if head >> _BITS != stamp:
        return 0
    count = 0
    p = first + (head & (MAX_WINDOW - 1))
    while p >= 0 and count < LIMIT:
        if p + 1 < length:
            order = 1
            while order < known and p - order >= first and buffer[p - order] == history[order]:
                order += 1
            b.nexts[count] = buffer[p + 1]
            b.orders[count] = order
            b.prompted[count] = p + 1 < prompt
            count += 1
        p = b.previous[p - first]
    return count
