"""Suffix array of many texts, sorted to a bounded depth with numpy sorts, without a quadratic worst case.

A code is a token's position in the pool's vocabulary, from 1; code 0 ends every text. Suffixes are compared
on their first ``depth`` codes and never past the end of their text. Equal suffixes keep the order of their
positions, so the same texts always give the same bytes.
"""

import numpy as np

from pools.jit import compiled


def sort_suffixes(codes: np.ndarray, depth: int) -> np.ndarray:
    """Sort the positions of all non-zero codes by the codes that follow.

    Prefix doubling (Manber and Myers, 1993) that starts with as many codes as fit into 64 bits, so that depth
    16 takes three sorts of N keys.

    Parameters
    ----------
    codes
        Integer (N,), 0 after each text.
    depth
        Minimum number of codes compared.

    Returns
    -------
    int32 (n,) : suffix array of the n non-zero codes
    """
    bits = max(1, int(codes.max(initial=0)).bit_length())
    reach = max(1, min(63 // bits, depth))
    keys = _pack(codes, bits, reach)
    ranks = _dense(keys, np.argsort(keys))
    while reach < depth:
        keys = _pair(codes, ranks, reach)
        ranks = _dense(keys, np.argsort(keys))
        reach *= 2
    return _place(codes, ranks)


def inverse(codes: np.ndarray, suffixes: np.ndarray) -> np.ndarray:
    """Inverse suffix array, int32 (N,): rank of each position; -1 at the end of a text."""
    ranks = np.full(codes.size, -1, np.int32)
    ranks[suffixes] = np.arange(suffixes.size, dtype=np.int32)
    return ranks


@compiled
def _pack(codes, bits, reach):
    keys = np.zeros(codes.size, np.uint64)
    top = np.uint64(bits * (reach - 1))
    key = np.uint64(0)
    for i in range(codes.size - 1, -1, -1):
        key = (np.uint64(codes[i]) << top) | (key >> np.uint64(bits))
        if codes[i] == 0:
            key = np.uint64(0)
        keys[i] = key
    return keys


@compiled
def _dense(keys, order):
    """Rank of each position: the number of distinct smaller keys. Only the ends of texts have rank 0."""
    ranks = np.empty(keys.size, np.int32)
    rank = 0
    for i in range(order.size):
        if i > 0 and keys[order[i]] != keys[order[i - 1]]:
            rank += 1
        ranks[order[i]] = rank
    return ranks


@compiled
def _pair(codes, ranks, reach):
    """Keys of 2 ``reach`` codes: the rank of the first ``reach`` and that of the next ``reach``."""
    keys = np.zeros(codes.size, np.uint64)
    end = codes.size
    for i in range(codes.size - 1, -1, -1):
        if codes[i] == 0:
            end = i
            continue
        following = ranks[i + reach] if i + reach < end else 0
        keys[i] = (np.uint64(ranks[i]) << np.uint64(32)) | np.uint64(following)
    return keys


@compiled
def _place(codes, ranks):
    """Counting sort of positions by rank. It is stable: equal suffixes keep the order of the texts."""
    starts = np.zeros(codes.size + 1, np.int64)
    total = 0
    for i in range(codes.size):
        if codes[i] != 0:
            starts[ranks[i] + 1] += 1
            total += 1
    for r in range(codes.size):
        starts[r + 1] += starts[r]
    suffixes = np.empty(total, np.int32)
    for i in range(codes.size):
        if codes[i] != 0:
            suffixes[starts[ranks[i]]] = i
            starts[ranks[i]] += 1
    return suffixes


@compiled
def common_prefixes(codes, suffixes, depth):
    """LCP array, uint8 (n,): codes that suffix i shares with suffix i - 1, up to ``depth``; 0 for the first.
    """
    shared = np.zeros(suffixes.size, np.uint8)
    for i in range(1, suffixes.size):
        a, b = suffixes[i - 1], suffixes[i]
        n = 0
        while n < depth and codes[a + n] != 0 and codes[a + n] == codes[b + n]:
            n += 1
        shared[i] = n
    return shared
