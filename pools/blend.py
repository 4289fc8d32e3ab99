"""Blend of one node's continuations over context orders and sources: prediction by partial matching.

From the longest context to the shortest, and within one from the nearest source: an order and source in
which the context occurs c times, with d different continuations, takes c / (c + alpha + beta d) of the weight
that is left, and spreads it over what followed those occurrences. The pool learned alpha and beta
(``pools.learn``), unless a lambda is given in their place (alpha = lambda, beta = 0). Of each pool the
longest context and the orders of ``RUNGS`` below it are looked up, while ``FLOOR`` of the weight is left.

Nothing is kept of a node but, for each pool, one suffix that begins with its context: see ``frontier``.
"""

from collections import namedtuple

import numpy as np

from pools import frontier
from pools.intervals import MOST_RUNS, interval, runs
from pools.jit import array_at, inlined, load_i32, part, prefetch
from pools.lookup import (
    ALPHA,
    BETA,
    DEPTH,
    KIND,
    LIVE,
    RANKS,
    SHARED,
    SUFFIXES,
    TOKENS,
    WIDTH,
    code_of,
    first,
    pool_at,
    token_of,
    weight,
)
from pools.tree import SOURCE_GROUP, SOURCE_LIVE, SOURCE_PROMPT

FLOOR = 1 / 10
AHEAD = 4  # rungs of each pool whose memory is asked for before any is read
NESTED = 8.0  # a group's texts are in the pool behind it too: its counts are trusted as much less
LEAST = 24  # suffixes of an interval that are always read whole
MOST_DIFFERENT = 32
RUNGS = (1, 2, 3, 4, 5, 6, 8, 11, 15, 23, 31)
_MOST = 128  # as deep as a pool can be
RUNG = np.isin(np.arange(_MOST), RUNGS)
BELOW = np.array([max((r for r in RUNGS if r < n), default=0) for n in range(_MOST)])  # the next shorter rung

# State of the node that grows; S pools, M orders
# history            int32 (M,)              tokens at and before the node, nearest first
# at, orders         int32 (S,)              a suffix that begins with its last ``orders`` tokens; 0: none
# next_orders        int32 (S,)              the order that is looked up next
# counts             int64 (S,)              occurrences of the context that was read last
# gains              float64 (S,)            weight that it takes, of all orders with the same occurrences
# read, totals, read_orders int32 (S,)       runs that were read, occurrences in them, order of the context
# codes, hits, firsts int32 (S, MOST_RUNS)   of each run: code, occurrences, a suffix in it
# live_counts        int32 (2, M + 1)        occurrences in the row's text and in its prompt
# live_gains         float64 (2, M + 1)
# scratch            int64 (M,)
State = namedtuple("State", "history at orders next_orders counts gains read totals read_orders codes hits "
                            "firsts live_counts live_gains scratch")


@part
def state(at, pools, orders):
    return State(
        array_at(at[0], orders, np.int32), array_at(at[1], pools, np.int32),
        array_at(at[2], pools, np.int32), array_at(at[3], pools, np.int32),
        array_at(at[4], pools, np.int64), array_at(at[5], pools, np.float64),
        array_at(at[6], pools, np.int32), array_at(at[7], pools, np.int32),
        array_at(at[8], pools, np.int32),
        array_at(at[9], (pools, MOST_RUNS), np.int32), array_at(at[10], (pools, MOST_RUNS), np.int32),
        array_at(at[11], (pools, MOST_RUNS), np.int32), array_at(at[12], (2, orders + 1), np.int32),
        array_at(at[13], (2, orders + 1), np.float64), array_at(at[14], orders, np.int64))


@inlined
def continuations(z, b, t, stamp, row_pools, lambdas, found, worth):
    """Add up what may follow a node; return how many tokens.

    found  occurrences in the row's own tokens, which are in branch ``b``
    worth  how many suffixes more are read of an interval that takes all of the weight
    """
    size, rest = 0, 1.0
    n = _count_live(z, b, found)
    for s in range(row_pools.size):
        z.read[s], z.counts[s], z.next_orders[s] = 0, 0, 0
        if row_pools[s] != 0 and z.orders[s] > 0:
            z.next_orders[s] = min(z.orders[s], z.history.size, pool_at(row_pools[s])[DEPTH] - 1)
            n = max(n, z.next_orders[s])
    _ahead(z, row_pools)
    while n > 0 and rest >= FLOOR:
        if RUNG[n] and found > 0:
            for kind in range(2):
                c = z.live_counts[kind, n]
                z.live_gains[kind, n] = 0.0
                if c > 0:
                    z.live_gains[kind, n] = rest * c / (c + _live_term(row_pools, lambdas, kind, n))
                    rest -= z.live_gains[kind, n]
        for s in range(row_pools.size):
            if z.next_orders[s] == n:
                a = pool_at(row_pools[s])
                low, c = interval(a, z.at[s], z.orders[s], n)
                if c != z.counts[s]:  # else the same occurrences as with more tokens
                    size = _emit(z, a, s, t, stamp, size)
                    _read(z, a, s, low, c, n, min(MOST_RUNS, LEAST + int(rest * worth)))
                term = lambdas[a[KIND], n]
                if term < 0:
                    term = weight(a, ALPHA, n) + weight(a, BETA, n) * min(z.read[s], MOST_DIFFERENT)
                    if a[KIND] == SOURCE_GROUP and s + 1 < row_pools.size and row_pools[s + 1] != 0:
                        term *= NESTED
                gain = rest * c / (c + term)
                z.gains[s] += gain
                rest -= gain
                z.next_orders[s] = BELOW[n]
        following = BELOW[n]
        for s in range(row_pools.size):
            following = max(following, z.next_orders[s])
        n = following
    for s in range(row_pools.size):
        if z.read[s] > 0:
            size = _emit(z, pool_at(row_pools[s]), s, t, stamp, size)
    return _from_row(z, b, t, stamp, found, n + 1, size)


@inlined
def _ahead(z, row_pools):
    """Ask for what the longest orders read of each pool, for this node and for one that goes on with the same
    text: read one after the other, each of them would wait for memory by itself.
    """
    for s in range(row_pools.size):
        n, order = z.next_orders[s], z.orders[s]
        if n == 0:
            continue
        a, suffix = pool_at(row_pools[s]), z.at[s]
        end = load_i32(a[SUFFIXES] + 4 * suffix) + order
        prefetch(a[TOKENS] + a[WIDTH] * end)
        for _ in range(AHEAD):
            if n <= 1:
                break
            _ask(a, suffix if n == order else load_i32(a[RANKS] + 4 * (end - n)))
            _ask(a, load_i32(a[RANKS] + 4 * (end + 1 - n)))
            n = BELOW[n]


@part
def _ask(a, suffix):
    prefetch(a[SHARED] + suffix)
    prefetch(a[SUFFIXES] + 4 * suffix)


@inlined
def _read(z, a, s, low, count, order, most):
    z.counts[s], z.gains[s], z.read_orders[s] = count, 0.0, order
    z.read[s], z.totals[s] = runs(a, low, count, order, most, z.codes[s], z.hits[s], z.firsts[s])


@inlined
def _emit(z, a, s, t, stamp, size):
    """Add the runs that were read last of pool ``s``, each by its share of the occurrences."""
    if z.gains[s] >= FLOOR / 4:
        share = z.gains[s] / max(1, z.totals[s])
        for i in range(z.read[s]):
            if z.codes[s, i] != 0:
                size, place = frontier.add(t, stamp, size, token_of(a, z.codes[s, i]), share * z.hits[s, i],
                                          a[KIND])
                if place >= 0 and t.orders[place, s] == 0:
                    t.at[place, s], t.orders[place, s] = z.firsts[s, i], z.read_orders[s] + 1
    return size


@inlined
def _count_live(z, b, found):
    """Count the occurrences in the row's own tokens by order; return the longest rung that has one."""
    if found == 0:
        return 0
    z.live_counts[:] = 0
    longest = 0
    for j in range(found):
        order = b.orders[j]
        order = order if RUNG[order] else BELOW[order]
        z.live_counts[b.prompted[j], order] += 1
        longest = max(longest, order)
    n = longest
    while n > 1:
        for kind in range(2):
            z.live_counts[kind, BELOW[n]] += z.live_counts[kind, n]
        n = BELOW[n]
    return longest


@part
def _live_term(row_pools, lambdas, prompted, n):
    """What a count in the row's own tokens is divided by, beside itself: given, or the widest pool's."""
    given = lambdas[SOURCE_PROMPT if prompted else SOURCE_LIVE, n]
    if given >= 0:
        return given
    for s in range(row_pools.size - 1, -1, -1):
        if row_pools[s] != 0:
            a = pool_at(row_pools[s])
            return weight(a, LIVE, min(n, a[DEPTH] - 1))
    return 2.0


@inlined
def _from_row(z, b, t, stamp, found, lowest, size):
    """Continuations in the row's own tokens: an occurrence has its part of each order that it matches."""
    for kind in range(2 if found > 0 else 0):
        share = 0.0
        for n in range(1, z.live_gains.shape[1]):
            if n >= lowest and RUNG[n] and z.live_counts[kind, n] > 0:
                share += z.live_gains[kind, n] / z.live_counts[kind, n]
            z.live_gains[kind, n] = share
    for j in range(found):
        share = z.live_gains[b.prompted[j], b.orders[j]]
        if share > 0:
            source = SOURCE_PROMPT if b.prompted[j] else SOURCE_LIVE
            size, _ = frontier.add(t, stamp, size, b.nexts[j], share, source)
    return size


@inlined
def known_in(z, a, s, token):
    """Start from the last token alone in a pool that did not propose it."""
    code = code_of(a, token)
    if code != 0:
        z.at[s], count = first(a, code)
        z.orders[s] = 1
