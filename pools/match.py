"""Longest match: the longest suffix of a row's text that occurs in a pool.

Between two forward passes the CPU caches are cold, and every step of a binary search waits for memory.
Contexts are therefore looked up from short to long. Once a context has few occurrences, all of them are
compared backwards, so that their memory accesses overlap.
"""

from pools.intervals import locate
from pools.jit import helper, load_i32, prefetch
from pools.lookup import DEPTH, RANKS, SUFFIXES, TOKENS, WIDTH, code, code_of, token_of

STEP = 4  # orders 1, 3, 11, 43 are tried until one does not occur
FEW = 64  # maximum number of occurrences compared one by one


@helper
def longest_match(z, a, s, known):
    """Find the longest context of the row that occurs in pool ``s``, within the ``known`` last tokens.

    Sets ``z.orders[s]`` to its number of tokens and, if that is above 0, ``z.at[s]`` to a suffix that begins
    with it.
    """
    max_order = min(known, z.history.size, a[DEPTH] - 1)
    order, coded = 0, 0  # the longest match so far; number of tokens converted to codes
    longer = max_order + 1  # an order that is known not to occur
    n = min(1, max_order)
    while longer - order > 1:
        while coded < n:
            z.scratch[coded] = code_of(a, z.history[coded])
            if z.scratch[coded] == 0:
                longer, n = coded + 1, coded
            else:
                coded += 1
        if n == order:
            break
        low, count = locate(a, z.scratch, n)
        if count > 0:
            order, z.at[s] = n, low
            if count <= FEW:
                order, z.at[s] = _extend(a, z.history, low, count, n, longer - 1)
                break
        else:
            longer = n
        n = min(STEP * order - 1, max_order) if longer > max_order else (order + longer) >> 1
    z.orders[s] = order


@helper
def _extend(a, history, low, count, order, max_order):
    """Extend all occurrences of a context backwards; return the longest match and a suffix that begins so.

    ``history`` int32 (M,) holds the row's tokens, nearest first, of which ``max_order`` are compared; (low,
    count) is the interval of the context of ``order`` tokens.
    """
    longest, begin = order, -1
    for suffix in range(low, low + count):
        prefetch(a[TOKENS] + a[WIDTH] * (load_i32(a[SUFFIXES] + 4 * suffix) - 1))
    for suffix in range(low, low + count):
        at, length = load_i32(a[SUFFIXES] + 4 * suffix), order
        while length < max_order and at > 0:
            previous = code(a, at - 1)
            if previous == 0 or token_of(a, previous) != history[length]:
                break
            length += 1
            at -= 1
        if length > longest:
            longest, begin = length, at
            if length == max_order:
                break
    return longest, low if begin < 0 else load_i32(a[RANKS] + 4 * begin)
