"""Where a row enters a pool: the longest of its own contexts that occurs there.

Between two forwards the processor's caches are cold, and a binary search is a chain of waits for memory. So
contexts are looked up from short to long, and as soon as one occurs a few times only, all of them are
followed backwards: those waits overlap.
"""

from pools.intervals import locate
from pools.jit import load_i32, part, prefetch
from pools.lookup import DEPTH, RANKS, SUFFIXES, TOKENS, WIDTH, code, code_of, token_of

STEP = 4  # orders 1, 3, 11, 43 are tried, until one does not occur
FEW = 64  # occurrences that are read one by one


@part
def enter(z, a, s, known):
    """Find the longest of the row's own contexts that occurs in pool ``s``, within its ``known`` last tokens.

    Sets ``z.orders[s]`` and, where it is not 0, ``z.at[s]``: any one of the suffixes that begin with it.
    """
    most = min(known, z.history.size, a[DEPTH] - 1)
    order, coded = 0, 0  # the longest found so far; codes known
    longer = most + 1  # an order that does not occur
    n = min(1, most)
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
                order, z.at[s] = _longest(a, z.history, low, count, n, longer - 1)
                break
        else:
            longer = n
        n = min(STEP * order - 1, most) if longer > most else (order + longer) >> 1
    z.orders[s] = order


@part
def _longest(a, history, low, count, order, most):
    """Longest context at any occurrence of the one of ``order`` tokens, and a suffix that begins with it.

    history     int32 (M,)  the row's tokens, nearest first; ``most`` of them are compared
    low, count  the interval of the context of ``order`` tokens
    """
    longest, begin = order, -1
    for suffix in range(low, low + count):
        prefetch(a[TOKENS] + a[WIDTH] * (load_i32(a[SUFFIXES] + 4 * suffix) - 1))
    for suffix in range(low, low + count):
        at, same = load_i32(a[SUFFIXES] + 4 * suffix), order
        while same < most and at > 0:
            before = code(a, at - 1)
            if before == 0 or token_of(a, before) != history[same]:
                break
            same += 1
            at -= 1
        if same > longest:
            longest, begin = same, at
            if same == most:
                break
    return longest, low if begin < 0 else load_i32(a[RANKS] + 4 * begin)
