"""Blend of one node's continuations over context orders and sources: prediction by partial matching.

Contexts are visited from the longest to the shortest, and the sources of an order from the nearest. An order
and source in which the context occurs c times, with d distinct continuations, gets c / (c + alpha + beta d)
of the remaining weight and distributes it over the tokens that followed those occurrences. The pool learned
alpha and beta (``pools.learn``); a configured pseudo-count replaces alpha and sets a pool's beta to 0. The
beta of the row's text and prompt is always ``LIVE_BETA``. In each pool, the longest context and the shorter
``BACKOFF_ORDERS`` are looked up while at least ``MIN_WEIGHT`` of the weight remains.

The only state kept per node is, for each pool, one suffix that begins with the node's context (``frontier``).
"""

from collections import namedtuple

import numpy as np

from pools import frontier
from pools.intervals import MAX_RUNS, interval, runs
from pools.jit import array_at, helper, inlined, load_i32, prefetch
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

MIN_WEIGHT = 1 / 10  # remaining weight below which shorter contexts are not looked up
PREFETCHED_ORDERS = 4  # back-off orders of each pool whose memory is prefetched
NESTED_FACTOR = 8.0  # a group's texts are also in the next pool: multiplies the group's pseudo-count
MIN_SUFFIXES = 24  # intervals up to this size are always read completely
MAX_DISTINCT = 32  # upper limit of d
LIVE_BETA = 1.0  # beta of the row's text and prompt
BACKOFF_ORDERS = (1, 2, 3, 4, 5, 6, 8, 11, 15, 23, 31)
_MAX_DEPTH = 128  # of a pool
IS_BACKOFF_ORDER = np.isin(np.arange(_MAX_DEPTH), BACKOFF_ORDERS)
NEXT_SHORTER = np.array([max((r for r in BACKOFF_ORDERS if r < n), default=0) for n in range(_MAX_DEPTH)])

# State of the node that is expanded; S pools, M orders
# history            int32 (M,)              tokens up to the node, nearest first
# at, orders         int32 (S,)              a suffix that begins with the last ``orders`` tokens; 0: none
# next_orders        int32 (S,)              the next order to look up
# counts             int64 (S,)              occurrences of the context that was read last
# gains              float64 (S,)            its weight, summed over the orders with the same occurrences
# read, totals, read_orders int32 (S,)       number of runs read, occurrences in them, order of the context
# codes, hits, firsts int32 (S, MAX_RUNS)    per run: code, occurrences, one of its suffixes
# live_counts        int32 (2, M + 1)        occurrences in the row's text and in its prompt
# live_distinct      int32 (2, M + 1)        their distinct continuations
# live_gains         float64 (2, M + 1)      their weights
# scratch            int64 (M,)
State = namedtuple("State", "history at orders next_orders counts gains read totals read_orders codes hits "
                            "firsts live_counts live_distinct live_gains scratch")


@helper
def state(at, pools, orders):
    """A ``State`` of S pools and M orders over memory at the addresses ``at``, int64 (16,)."""
    return State(
        array_at(at[0], orders, np.int32), array_at(at[1], pools, np.int32),
        array_at(at[2], pools, np.int32), array_at(at[3], pools, np.int32),
        array_at(at[4], pools, np.int64), array_at(at[5], pools, np.float64),
        array_at(at[6], pools, np.int32), array_at(at[7], pools, np.int32),
        array_at(at[8], pools, np.int32),
        array_at(at[9], (pools, MAX_RUNS), np.int32), array_at(at[10], (pools, MAX_RUNS), np.int32),
        array_at(at[11], (pools, MAX_RUNS), np.int32), array_at(at[12], (2, orders + 1), np.int32),
        array_at(at[13], (2, orders + 1), np.int32), array_at(at[14], (2, orders + 1), np.float64),
        array_at(at[15], orders, np.int64))


@inlined
def continuations(z, b, t, stamp, row_pools, pseudo_counts, matches, max_reads):
    """Sum the probabilities of a node's continuations in ``t``.

    Parameters
    ----------
    z : State
        Of the node, with ``history``, ``at`` and ``orders`` set. The other arrays are scratch memory.
    b : live.Branch
        The row's tokens, with the occurrences of the node's context.
    t : frontier.Table
        Gets the continuations.
    stamp : int
        Number of the node, unique while ``t`` is used.
    row_pools : int64 (S,)
        ``Index.address`` of the row's pools, nearest first; 0: none.
    pseudo_counts : float64 (sources, orders)
        Configured pseudo-counts; negative: the learned ones.
    matches : int
        Number of occurrences in ``b``.
    max_reads : int
        Suffixes read, beyond ``MIN_SUFFIXES``, of an interval that gets all of the weight.

    Returns
    -------
    int
        Number of continuations.
    """
    size, rest = 0, 1.0
    n = _count_live(z, b, matches)
    for s in range(row_pools.size):
        z.read[s], z.counts[s], z.next_orders[s] = 0, 0, 0
        if row_pools[s] != 0 and z.orders[s] > 0:
            z.next_orders[s] = min(z.orders[s], z.history.size, pool_at(row_pools[s])[DEPTH] - 1)
            n = max(n, z.next_orders[s])
    _prefetch(z, row_pools)
    while n > 0 and rest >= MIN_WEIGHT:
        if IS_BACKOFF_ORDER[n] and matches > 0:
            for kind in range(2):
                c = z.live_counts[kind, n]
                z.live_gains[kind, n] = 0.0
                if c > 0:
                    beta_d = LIVE_BETA * z.live_distinct[kind, n]
                    alpha = _live_term(row_pools, pseudo_counts, kind, n)
                    z.live_gains[kind, n] = rest * c / (c + alpha + beta_d)
                    rest -= z.live_gains[kind, n]
        for s in range(row_pools.size):
            if z.next_orders[s] == n:
                a = pool_at(row_pools[s])
                low, c = interval(a, z.at[s], z.orders[s], n)
                if c != z.counts[s]:  # otherwise the occurrences are those of the longer context
                    size = _emit(z, a, s, t, stamp, size)
                    _read(z, a, s, low, c, n, min(MAX_RUNS, MIN_SUFFIXES + int(rest * max_reads)))
                term = pseudo_counts[a[KIND], n]
                if term < 0:
                    term = weight(a, ALPHA, n) + weight(a, BETA, n) * min(z.read[s], MAX_DISTINCT)
                    if a[KIND] == SOURCE_GROUP and s + 1 < row_pools.size and row_pools[s + 1] != 0:
                        term *= NESTED_FACTOR
                gain = rest * c / (c + term)
                z.gains[s] += gain
                rest -= gain
                z.next_orders[s] = NEXT_SHORTER[n]
        following = NEXT_SHORTER[n]
        for s in range(row_pools.size):
            following = max(following, z.next_orders[s])
        n = following
    for s in range(row_pools.size):
        if z.read[s] > 0:
            size = _emit(z, pool_at(row_pools[s]), s, t, stamp, size)
    return _add_live(z, b, t, stamp, matches, n + 1, size)


@inlined
def _prefetch(z, row_pools):
    """Prefetch what the longest orders read of each pool, for this node and for its child in the same text.

    Otherwise every read would wait for memory in turn.
    """
    for s in range(row_pools.size):
        n, order = z.next_orders[s], z.orders[s]
        if n == 0:
            continue
        a, suffix = pool_at(row_pools[s]), z.at[s]
        end = load_i32(a[SUFFIXES] + 4 * suffix) + order
        prefetch(a[TOKENS] + a[WIDTH] * end)
        for _ in range(PREFETCHED_ORDERS):
            if n <= 1:
                break
            _prefetch_suffix(a, suffix if n == order else load_i32(a[RANKS] + 4 * (end - n)))
            _prefetch_suffix(a, load_i32(a[RANKS] + 4 * (end + 1 - n)))
            n = NEXT_SHORTER[n]


@helper
def _prefetch_suffix(a, suffix):
    prefetch(a[SHARED] + suffix)
    prefetch(a[SUFFIXES] + 4 * suffix)


@inlined
def _read(z, a, s, low, count, order, max_suffixes):
    z.counts[s], z.gains[s], z.read_orders[s] = count, 0.0, order
    z.read[s], z.totals[s] = runs(a, low, count, order, max_suffixes, z.codes[s], z.hits[s], z.firsts[s])


@inlined
def _emit(z, a, s, t, stamp, size):
    """Add the runs that were read last from pool ``s``, each with its share of the occurrences."""
    if z.gains[s] >= MIN_WEIGHT / 4:
        share = z.gains[s] / max(1, z.totals[s])
        for i in range(z.read[s]):
            if z.codes[s, i] != 0:
                size, place = frontier.add(t, stamp, size, token_of(a, z.codes[s, i]), share * z.hits[s, i],
                                          a[KIND])
                if place >= 0 and t.orders[place, s] == 0:
                    t.at[place, s], t.orders[place, s] = z.firsts[s, i], z.read_orders[s] + 1
    return size


@inlined
def _count_live(z, b, matches):
    """Count the occurrences in the row's tokens by order and return the longest order that has one."""
    if matches == 0:
        return 0
    z.live_counts[:] = 0
    z.live_distinct[:] = 0
    longest = 0
    for j in range(matches):
        order = b.orders[j]
        order = order if IS_BACKOFF_ORDER[order] else NEXT_SHORTER[order]
        z.live_counts[b.prompted[j], order] += 1
        z.live_distinct[b.prompted[j], order] += _is_longest(b, j, matches)
        longest = max(longest, order)
    n = longest
    while n > 1:
        for kind in range(2):
            z.live_counts[kind, NEXT_SHORTER[n]] += z.live_counts[kind, n]
            z.live_distinct[kind, NEXT_SHORTER[n]] += z.live_distinct[kind, n]
        n = NEXT_SHORTER[n]
    return longest


@inlined
def _is_longest(b, j, matches):
    """Whether no longer match, and no nearer one of the same length, has the same continuation."""
    for k in range(matches):
        if (b.nexts[k] == b.nexts[j] and b.prompted[k] == b.prompted[j]
                and (b.orders[k] > b.orders[j] or (b.orders[k] == b.orders[j] and k < j))):
            return False
    return True


@helper
def _live_term(row_pools, pseudo_counts, prompted, n):
    """Pseudo-count of the row's tokens: the configured one, else that of the least specific pool."""
    configured = pseudo_counts[SOURCE_PROMPT if prompted else SOURCE_LIVE, n]
    if configured >= 0:
        return configured
    for s in range(row_pools.size - 1, -1, -1):
        if row_pools[s] != 0:
            a = pool_at(row_pools[s])
            return weight(a, LIVE, min(n, a[DEPTH] - 1))
    return 2.0


@inlined
def _add_live(z, b, t, stamp, matches, lowest, size):
    """Add the continuations in the row's tokens. An occurrence gets its share of each order that it matches.
    """
    for kind in range(2 if matches > 0 else 0):
        share = 0.0
        for n in range(1, z.live_gains.shape[1]):
            if n >= lowest and IS_BACKOFF_ORDER[n] and z.live_counts[kind, n] > 0:
                share += z.live_gains[kind, n] / z.live_counts[kind, n]
            z.live_gains[kind, n] = share
    for j in range(matches):
        share = z.live_gains[b.prompted[j], b.orders[j]]
        if share > 0:
            source = SOURCE_PROMPT if b.prompted[j] else SOURCE_LIVE
            size, _ = frontier.add(t, stamp, size, b.nexts[j], share, source)
    return size


@inlined
def known_in(z, a, s, token):
    """Set the match in pool ``s``, which did not propose ``token``, to that token alone.

    Parameters
    ----------
    z : State
    a : int64 (13,)
        ``Index.addresses`` of the pool.
    s : int
        Position of the pool among those of the row.
    token : int
        Token id; ``z`` does not change if the pool lacks it.
    """
    code = code_of(a, token)
    if code != 0:
        z.at[s], count = first(a, code)
        z.orders[s] = 1
