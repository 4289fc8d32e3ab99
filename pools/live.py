"""Temporary branch of a request: its own prompt and text so far, searched in place.

Nothing is kept between calls: the row's token buffer is the branch, and it ends with the request. One
backward pass chains equal tokens of the last ``window`` positions; an occurrence of a context is then found
by walking the chain of the context's last token. Only the ``LIMIT`` nearest occurrences count.
"""

from pools.jit import compiled

LIMIT = 32
SLOTS = 8192  # of the token table; a power of two, at least twice the longest window
MAX_WINDOW = SLOTS // 2
_MULTIPLIER = 2654435761


@compiled
def slot_of(token, keys, stamps, stamp):
    """Slot of ``token`` in the open-addressed table: its own, or the free one where it belongs."""
    slot = (token * _MULTIPLIER >> 7) & (SLOTS - 1)
    while stamps[slot] == stamp and keys[slot] != token:
        slot = (slot + 1) & (SLOTS - 1)
    return slot


@compiled
def chain(buffer, length, window, keys, heads, stamps, stamp, before):
    """Chain equal tokens of ``buffer[first:length]``; return ``first``.

    buffer          int32 (L,)      the row; only [:length] is used
    keys, heads     int32 (SLOTS,)  table: token -> its last position, valid where stamps == stamp
    before          int32 (window,) before[p - first]: the previous position of buffer[p], or -1
    """
    first = max(0, length - window)
    for p in range(first, length):
        slot = slot_of(buffer[p], keys, stamps, stamp)
        if stamps[slot] == stamp:
            before[p - first] = heads[slot]
        else:
            stamps[slot] = stamp
            keys[slot] = buffer[p]
            before[p - first] = -1
        heads[slot] = p
    return first


@compiled
def occurrences(buffer, length, first, history, known, keys, heads, stamps, stamp, before, nexts, orders):
    """Where the tokens before a node occurred in the row, nearest first; return how many.

    history  int32 (H,)      the node's own token and those before it, nearest first; ``known`` of them
    nexts    int32 (LIMIT,)  out: the token that followed
    orders   int32 (LIMIT,)  out: how many tokens before it equal the history, at most ``known``
    """
    slot = slot_of(history[0], keys, stamps, stamp)
    if stamps[slot] != stamp:
        return 0
    found = 0
    p = heads[slot]
    while p >= 0 and found < LIMIT:
        if p + 1 < length:
            order = 1
            while order < known and p - order >= first and buffer[p - order] == history[order]:
                order += 1
            nexts[found] = buffer[p + 1]
            orders[found] = order
            found += 1
        p = before[p - first]
    return found
