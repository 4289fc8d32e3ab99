"""Intervals of the suffix array from its LCP array, eight suffixes at a time, and the codes that follow them.

``a`` is ``Index.addresses``, int64 (13,), and an interval is (low, count), as in ``pools.lookup``.
"""

import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros, trailing_zeros

from pools.jit import helper, load_i32, load_i64, load_u8
from pools.lookup import BLOCK_MIN, COUNT, RANKS, SHARED, SUFFIXES, code, code_at, first, lcp

BLOCK = 64  # suffixes per entry of BLOCK_MIN
MAX_RUNS = 256  # runs read per interval
_TOP_BITS = np.int64(-0x7F7F7F7F7F7F7F80)  # 0x80 in each byte


@helper
def _lcp_at_least(a, suffix, length):
    """Top bits of eight bytes: whether the LCP (< 128) of suffix, suffix + 1, ... is at least ``length``."""
    return ((load_i64(a[SHARED] + suffix) | _TOP_BITS) - length * 0x0101010101010101) & _TOP_BITS


@helper
def interval(a, suffix, order, length):
    """Interval (low, count) of the last ``length`` of the first ``order`` codes of a suffix."""
    if length == 1:
        return first(a, code(a, load_i32(a[SUFFIXES] + 4 * suffix) + order - 1))
    if length < order:
        suffix = load_i32(a[RANKS] + 4 * (load_i32(a[SUFFIXES] + 4 * suffix) + order - length))
    begin = _begin(a, suffix, length)
    return begin, _end(a, suffix + 1, length) - begin


@helper
def _begin(a, at, length):
    """First suffix of the run that ends at ``at`` and shares ``length`` codes with it."""
    while at >= 7:
        bits = ~_lcp_at_least(a, at - 7, length) & _TOP_BITS
        if bits != 0:
            return at - (leading_zeros(bits) >> 3)
        at = (at - 8) | 7  # the suffixes above are known to share
        while at & (BLOCK - 1) == BLOCK - 1 and load_u8(a[BLOCK_MIN] + at // BLOCK) >= length:
            at -= BLOCK
    while lcp(a, at) >= length:
        at -= 1
    return at


@helper
def _end(a, at, length):
    """First suffix from ``at`` that does not share ``length`` codes with the previous one."""
    last_block = a[COUNT] // BLOCK * BLOCK
    while at + 8 <= a[COUNT]:
        bits = ~_lcp_at_least(a, at, length) & _TOP_BITS
        if bits != 0:
            return at + (trailing_zeros(bits) >> 3)
        at = (at + 8) & ~7
        while at & (BLOCK - 1) == 0 and at < last_block and load_u8(a[BLOCK_MIN] + at // BLOCK) >= length:
            at += BLOCK
    while at < a[COUNT] and lcp(a, at) >= length:
        at += 1
    return at


@helper
def locate(a, codes, order):
    """Interval of the context ``codes[order - 1], ..., codes[0]``.

    A binary search finds one suffix that begins with the context; the LCP array then gives the interval.

    Parameters
    ----------
    a : int64 (13,)
    codes : int array (at least order,)
        Nearest first, all above 0.
    order : int

    Returns
    -------
    low, count : int
        ``count`` is 0 if the pool lacks the context.
    """
    left, count = first(a, codes[order - 1])
    if order == 1:
        return left, count
    right = left + count
    while left < right:
        middle = (left + right) >> 1
        difference = _compare(a, middle, codes, order)
        if difference == 0:
            begin = _begin(a, middle, order)
            return begin, _end(a, middle + 1, order) - begin
        if difference < 0:
            left = middle + 1
        else:
            right = middle
    return left, 0


@helper
def _compare(a, suffix, codes, order):
    """Compare a suffix with a context whose first code is equal: negative, 0 or positive."""
    position = load_i32(a[SUFFIXES] + 4 * suffix)
    for offset in range(1, order):
        difference = code(a, position + offset) - codes[order - 1 - offset]
        if difference != 0:
            return difference
    return 0


@helper
def runs(a, low, count, order, max_suffixes, codes, hits, firsts):
    """Read the codes that follow an interval of ``order`` equal codes, as runs.

    If the interval has more than ``max_suffixes`` suffixes, half of ``max_suffixes`` are read at even
    distances.

    Parameters
    ----------
    a : int64 (13,)
    low, count : int
        The interval.
    order : int
    max_suffixes : int
        At most ``MAX_RUNS``.
    codes, hits, firsts : int32 (MAX_RUNS,)
        Filled per run: the code (0: the end of a text), the number of its suffixes, and one of them.

    Returns
    -------
    runs, suffixes : int
        Numbers of runs and of suffixes read.
    """
    if count > max_suffixes:
        return _sampled_runs(a, low, count, order, max_suffixes // 2, codes, hits, firsts)
    size, start, at, end = 0, low, low + 1, low + count
    while at < end:
        if at + 8 <= a[COUNT]:
            bits = ~_lcp_at_least(a, at, order + 1) & _TOP_BITS
            if end - at < 8:
                bits &= (np.int64(1) << (8 * (end - at))) - 1
            while bits != 0:
                here = at + (trailing_zeros(bits) >> 3)
                bits &= bits - 1
                codes[size], hits[size], firsts[size] = code_at(a, start, order), here - start, start
                start = here
                size += 1
            at += 8
        else:
            if lcp(a, at) <= order:
                codes[size], hits[size], firsts[size] = code_at(a, start, order), at - start, start
                start = at
                size += 1
            at += 1
    codes[size], hits[size], firsts[size] = code_at(a, start, order), end - start, start
    return size + 1, count


@helper
def _sampled_runs(a, low, count, order, samples, codes, hits, firsts):
    size, last = 0, -1
    for i in range(samples):
        suffix = low + count * (2 * i + 1) // (2 * samples)
        here = code_at(a, suffix, order)
        if here == last:
            hits[size - 1] += 1
        else:
            codes[size], hits[size], firsts[size] = here, 1, suffix
            size += 1
            last = here
    return size, samples
