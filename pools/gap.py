"""Contexts with a gap: what followed a row's tokens in a pool where another token stood in place of the last.

After a name or number that is new to the pool, no context of the row is known. The texts that had another
name or number there tell how the sentence goes on.
"""

from pools import frontier
from pools.intervals import interval
from pools.jit import inlined, load_i32
from pools.lookup import KIND, SUFFIXES, code, token_of
from pools.match import longest_match

MIN_ORDER, MAX_ORDER = 2, 6  # tokens before the gap that must agree
READS = 32  # occurrences read, at even distances if there are more
PSEUDO_COUNT = 32.0  # occurrences at which they get half of the remaining weight


@inlined
def add(z, t, stamp, size, rest, a, s, known):
    """Add the continuations of the root to the table ``t``, with their share of the weight ``rest``.

    Parameters
    ----------
    z : blend.State
        ``nexts`` is scratch memory; ``at`` and ``orders`` of the pool are set back.
    a : int64 (13,)
        ``Index.addresses`` of pool ``s``.
    known : int
        Number of tokens in ``z.history``.

    Returns
    -------
    size, rest
        Number of continuations in ``t``, and the remaining weight.
    """
    at, order, last = z.at[s], z.orders[s], z.history[0]
    for i in range(known - 1):
        z.history[i] = z.history[i + 1]
    longest_match(z, a, s, known - 1)
    n, valid = min(z.orders[s], MAX_ORDER), 0
    if n >= MIN_ORDER:
        low, count = interval(a, z.at[s], z.orders[s], n)
        reads = min(count, READS)
        for j in range(reads):
            gap = load_i32(a[SUFFIXES] + 4 * (low + j * count // reads)) + n
            other = code(a, gap)
            if other != 0 and token_of(a, other) != last and code(a, gap + 1) != 0:
                z.nexts[valid] = token_of(a, code(a, gap + 1))
                valid += 1
    if valid > 0:
        share = rest / (valid + PSEUDO_COUNT)
        rest -= share * valid
        for j in range(valid):
            size, _ = frontier.add(t, stamp, size, z.nexts[j], share, a[KIND])
    for i in range(known - 1, 0, -1):
        z.history[i] = z.history[i - 1]
    z.history[0], z.at[s], z.orders[s] = last, at, order
    return size, rest
