"""Lookups in an index from compiled code, through the addresses of its arrays.

In all functions, ``a`` is ``Index.addresses``, int64 (13,). Codes, tokens, positions and suffixes are
integers: a suffix is a rank in the suffix array, an interval of suffixes is (low, count).
"""

import numpy as np

from pools.jit import array_at, helper, load_f64, load_i32, load_u8, load_u16

(TOKENS, WIDTH, SUFFIXES, RANKS, SHARED, BLOCK_MIN, VOCAB, STARTS, WEIGHTS, SIZE, DEPTH, COUNT,
 KIND) = range(13)
ALPHA, BETA, LIVE = range(3)  # rows of WEIGHTS


@helper
def pool_at(address):
    """``Index.addresses``, int64 (13,), of the index with this ``Index.address`` (int)."""
    return array_at(address, 13, np.int64)


@helper
def code(a, position):
    """Code at a position of ``Index.tokens``."""
    if a[WIDTH] == 2:
        return load_u16(a[TOKENS] + 2 * position)
    return load_i32(a[TOKENS] + 4 * position)


@helper
def code_at(a, suffix, offset):
    """Code at ``offset`` from the start of the suffix of rank ``suffix``."""
    return code(a, load_i32(a[SUFFIXES] + 4 * suffix) + offset)


@helper
def token_of(a, code):
    """Token id of a code."""
    return load_i32(a[VOCAB] + 4 * (code - 1))


@helper
def code_of(a, token):
    """Code of a token id; 0 if the pool does not contain it."""
    low, count = 0, a[SIZE]
    while count > 1:  # branch-free: the processor would mispredict every other branch
        half = count >> 1
        low += half * (load_i32(a[VOCAB] + 4 * (low + half - 1)) < token)
        count -= half
    low += count > 0 and load_i32(a[VOCAB] + 4 * low) < token
    if low < a[SIZE] and load_i32(a[VOCAB] + 4 * low) == token:
        return low + 1
    return 0


@helper
def lcp(a, suffix):
    """Number of codes that a suffix shares with the previous suffix."""
    return load_u8(a[SHARED] + suffix)


@helper
def first(a, code):
    """Interval (low, count) of the suffixes that begin with ``code``."""
    low = load_i32(a[STARTS] + 4 * code)
    return low, load_i32(a[STARTS] + 4 * (code + 1)) - low


@helper
def weight(a, row, order):
    """Learned blend weight (float) of a context order; ``row`` is ALPHA, BETA or LIVE."""
    return load_f64(a[WEIGHTS] + 8 * (row * a[DEPTH] + order))


@helper
def narrow(a, low, count, offset, code):
    """Subinterval (low, count) with ``code`` at ``offset``, of an interval whose first ``offset`` codes are
    equal.
    """
    left, right = low, low + count
    while left < right:
        middle = (left + right) >> 1
        if code_at(a, middle, offset) < code:
            left = middle + 1
        else:
            right = middle
    return left, run(a, left, low + count, offset, code)


@helper
def run(a, left, end, offset, code):
    """Number of consecutive suffixes in [left, end), from ``left``, with ``code`` at ``offset`` (galloping
    search: runs are short).
    """
    if left == end or code_at(a, left, offset) != code:
        return 0
    inside, step = left, 1
    while inside + step < end and code_at(a, inside + step, offset) == code:
        inside += step
        step <<= 1
    outside = min(end, inside + step)
    while inside + 1 < outside:
        middle = (inside + outside) >> 1
        if code_at(a, middle, offset) == code:
            inside = middle
        else:
            outside = middle
    return inside + 1 - left
