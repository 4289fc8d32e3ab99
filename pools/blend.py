"""Blend of one node's continuations over context orders and sources: prediction by partial matching.

From the longest context to the shortest, and within one from the nearest source: an order and source in
which the context occurs c times takes c / (c + lambda) of the weight that is left, and spreads it over what
followed those occurrences. Below ``FLOOR`` the rest of the weight is not worth reading: shorter contexts are
not even looked up.
"""

from collections import namedtuple

import numpy as np

from pools import frontier
from pools.jit import array_at, compiled, inlined
from pools.lookup import DEPTH, code_at, code_of, first, locate, narrow, shared_before, shorter, token_of
from pools.tree import SOURCE_LIVE

SAMPLES = 48  # continuations read of one context; of a more frequent one, at even distances
FLOOR = 1 / 32

# State of node j in row j + 1, of the root in row 0; S pools, M orders, K nodes
# low, count  int32 (K + 1, S, M + 1)  interval of the last n tokens, for shortest <= n <= longest
# shortest    int32 (K + 1, S)         shortest context looked up so far
# longest     int32 (K + 1, S)         longest context that occurs; 0: not even the last token does
# codes       int64 (M,)               scratch
# history     int32 (M,)               tokens at and before the node, nearest first
# gains       float64 (S, M + 1)       weight of each order and source
# live_gains, live_counts (M + 1,)     the same for the temporary branch
State = namedtuple("State", "low count shortest longest codes history gains live_gains live_counts")


@compiled
def state(at, nodes, pools, orders):
    intervals = (nodes + 1, pools, orders + 1)
    return State(
        array_at(at[0], intervals, np.int32), array_at(at[1], intervals, np.int32),
        array_at(at[2], (nodes + 1, pools), np.int32), array_at(at[3], (nodes + 1, pools), np.int32),
        array_at(at[4], orders, np.int64), array_at(at[5], orders, np.int32),
        array_at(at[6], (pools, orders + 1), np.float64), array_at(at[7], orders + 1, np.float64),
        array_at(at[8], orders + 1, np.int32))


@compiled
def enter(z, a, s, known):
    """Find the longest of the row's own contexts that occurs in pool ``s``."""
    most = min(known, z.history.size, a[DEPTH] - 1)
    for n in range(most):
        z.codes[n] = code_of(a, z.history[n])
        if z.codes[n] == 0:
            most = n
            break
    shorter_one, longer_one = 0, most + 1  # the first occurs, the second does not
    n = most
    while longer_one - shorter_one > 1:
        low, count = locate(a, z.codes, n)
        if count > 0:
            shorter_one = n
            z.low[0, s, n], z.count[0, s, n] = low, count
        else:
            longer_one = n
        n = (shorter_one + longer_one) >> 1
    z.shortest[0, s] = z.longest[0, s] = shorter_one


@inlined
def descend(z, a, s, row, above, token):
    """Find a child's longest context in pool ``s``: a continuation of one of its parent's."""
    z.shortest[row, s] = z.longest[row, s] = 0
    code = code_of(a, token)
    if code == 0:
        return
    most = min(z.history.size, a[DEPTH] - 1)
    failed = 0
    for n in range(z.longest[above, s], 0, -1):
        c = occurrences(z, a, s, above, n)
        if c == failed:  # the same occurrences as with one token more
            continue
        low, count = narrow(a, z.low[above, s, n], c, n, code)
        if count > 0:
            order = n + 1
            if order > most:
                low, count = shorter(a, low, order)
                order = most
            z.low[row, s, order], z.count[row, s, order] = low, count
            z.shortest[row, s] = z.longest[row, s] = order
            return
        failed = c
    z.low[row, s, 1], z.count[row, s, 1] = first(a, code)
    z.shortest[row, s] = z.longest[row, s] = 1


@inlined
def occurrences(z, a, s, row, order):
    """How often the last ``order`` tokens of a node occur in pool ``s``; order <= longest."""
    while z.shortest[row, s] > order:
        n = z.shortest[row, s]
        z.low[row, s, n - 1], z.count[row, s, n - 1] = shorter(a, z.low[row, s, n], n)
        z.shortest[row, s] = n - 1
    return z.count[row, s, order]


@inlined
def continuations(z, b, t, stamp, pools, row_pools, row_kinds, lambdas, row, found):
    """Add up what may follow a node; return how many tokens. ``found`` occurrences are in branch ``b``."""
    orders = z.history.size
    weight = 1.0
    z.live_counts[:] = 0
    if found > 0:
        for j in range(found):
            z.live_counts[b.orders[j]] += 1
        for n in range(orders - 1, 0, -1):
            z.live_counts[n] += z.live_counts[n + 1]
    n = orders
    while n > 0 and weight >= FLOOR:
        c = z.live_counts[n]
        z.live_gains[n] = 0.0
        if c > 0:
            z.live_gains[n] = weight * c / (c + lambdas[SOURCE_LIVE, n])
            weight -= z.live_gains[n]
        for s in range(row_pools.size):
            z.gains[s, n] = 0.0
            if row_pools[s] >= 0 and n <= z.longest[row, s]:
                c = occurrences(z, pools[row_pools[s]], s, row, n)
                z.gains[s, n] = weight * c / (c + lambdas[row_kinds[s], n])
                weight -= z.gains[s, n]
        n -= 1
    lowest = n + 1
    size = _from_row(z, b, t, stamp, found, lowest)
    for s in range(row_pools.size):
        if row_pools[s] < 0:
            continue
        n = min(orders, z.longest[row, s])
        while n >= lowest:
            c, gain, order = z.count[row, s, n], z.gains[s, n], n
            while n > lowest and z.count[row, s, n - 1] == c:  # the same occurrences: read once
                n -= 1
                gain += z.gains[s, n]
            if c > 0 and gain >= FLOOR:
                a = pools[row_pools[s]]
                size = _read(a, z.low[row, s, order], c, order, gain, row_kinds[s], t, stamp, size)
            n -= 1
    return size


@inlined
def _from_row(z, b, t, stamp, found, lowest):
    """Continuations in the row's own text: an occurrence has its part of each order that it matches."""
    size = 0
    if found == 0:
        return 0
    share = 0.0
    for n in range(1, z.live_gains.size):
        if n >= lowest and z.live_counts[n] > 0:
            share += z.live_gains[n] / z.live_counts[n]
        z.live_gains[n] = share
    for j in range(found):
        if z.live_gains[b.orders[j]] > 0:
            size = frontier.add(t, stamp, size, b.nexts[j], z.live_gains[b.orders[j]], SOURCE_LIVE)
    return size


@inlined
def _read(a, low, count, order, gain, kind, t, stamp, size):
    """Add the continuations of one interval, each by its share of the occurrences."""
    if count <= SAMPLES:
        i = 0
        while i < count:
            j = i + 1
            while j < count and shared_before(a, low + j) > order:
                j += 1
            code = code_at(a, low + i, order)
            if code != 0:
                size = frontier.add(t, stamp, size, token_of(a, code), gain * (j - i) / count, kind)
            i = j
        return size
    samples = 8 + int(gain * (SAMPLES - 8))
    code, hits = 0, 0
    for i in range(samples):
        here = code_at(a, low + count * (2 * i + 1) // (2 * samples), order)
        if here != code:
            if code != 0:
                size = frontier.add(t, stamp, size, token_of(a, code), gain * hits / samples, kind)
            code, hits = here, 0
        hits += 1
    if code != 0:
        size = frontier.add(t, stamp, size, token_of(a, code), gain * hits / samples, kind)
    return size
