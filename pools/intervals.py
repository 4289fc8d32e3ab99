"""Intervals of the suffix array by what neighbours share, and what follows them: eight suffixes at a time.

``a`` is as in ``pools.lookup``.
"""

import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros, trailing_zeros

from pools.jit import load_i32, load_i64, load_u8, part
from pools.lookup import (
    COUNT,
    LEAST,
    RANKS,
    SHARED,
    SUFFIXES,
    code,
    code_at,
    first,
    shared_before,
)

BLOCK = 64  # suffixes to one entry of LEAST
MOST_RUNS = 256  # runs that are read of one interval, at most
_TOPS = np.int64(-0x7F7F7F7F7F7F7F80)  # 0x80 in each byte


@part
def _sharing(a, suffix, least):
    """The top bit of each of eight bytes: whether suffixes from ``suffix`` on share ``least`` codes with the
    one before (SHARED < 128)."""
    return ((load_i64(a[SHARED] + suffix) | _TOPS) - least * 0x0101010101010101) & _TOPS


@part
def interval(a, suffix, order, least):
    """Interval of the last ``least`` of the ``order`` codes that a suffix begins with."""
    if least == 1:
        return first(a, code(a, load_i32(a[SUFFIXES] + 4 * suffix) + order - 1))
    if least < order:
        suffix = load_i32(a[RANKS] + 4 * (load_i32(a[SUFFIXES] + 4 * suffix) + order - least))
    begin = _begin(a, suffix, least)
    return begin, _end(a, suffix + 1, least) - begin


@part
def _begin(a, at, least):
    """First of the suffixes up to ``at`` of which all share ``least`` codes with it."""
    while at >= 7:
        bits = ~_sharing(a, at - 7, least) & _TOPS
        if bits != 0:
            return at - (leading_zeros(bits) >> 3)
        at = (at - 8) | 7  # those above are known to share
        while at & (BLOCK - 1) == BLOCK - 1 and load_u8(a[LEAST] + at // BLOCK) >= least:
            at -= BLOCK
    while shared_before(a, at) >= least:
        at -= 1
    return at


@part
def _end(a, at, least):
    """First suffix from ``at`` on that does not share ``least`` codes with the one before."""
    last_block = a[COUNT] // BLOCK * BLOCK
    while at + 8 <= a[COUNT]:
        bits = ~_sharing(a, at, least) & _TOPS
        if bits != 0:
            return at + (trailing_zeros(bits) >> 3)
        at = (at + 8) & ~7
        while at & (BLOCK - 1) == 0 and at < last_block and load_u8(a[LEAST] + at // BLOCK) >= least:
            at += BLOCK
    while at < a[COUNT] and shared_before(a, at) >= least:
        at += 1
    return at


@part
def locate(a, codes, order):
    """Interval of the context ``codes[order - 1], ..., codes[0]`` (nearest first, none of them 0).

    One suffix that begins with it is searched for; how far the interval reaches stands beside it in SHARED.
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


@part
def _compare(a, suffix, codes, order):
    """Sign of the suffix's codes against the context's, the first of which is the same."""
    position = load_i32(a[SUFFIXES] + 4 * suffix)
    for offset in range(1, order):
        difference = code(a, position + offset) - codes[order - 1 - offset]
        if difference != 0:
            return difference
    return 0


@part
def runs(a, low, count, order, most, codes, hits, firsts):
    """Read what follows an interval of ``order`` equal codes: each code, how often, one suffix that has it.

    Of more than ``most`` suffixes half as many are read, at even distances. Returns how many runs and how
    many suffixes were read; codes, hits and firsts (MOST_RUNS,) are filled. Code 0 is the end of a text.
    """
    if count > most:
        return _sampled(a, low, count, order, most // 2, codes, hits, firsts)
    size, start, at, end = 0, low, low + 1, low + count
    while at < end:
        if at + 8 <= a[COUNT]:
            bits = ~_sharing(a, at, order + 1) & _TOPS
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
            if shared_before(a, at) <= order:
                codes[size], hits[size], firsts[size] = code_at(a, start, order), at - start, start
                start = at
                size += 1
            at += 1
    codes[size], hits[size], firsts[size] = code_at(a, start, order), end - start, start
    return size + 1, count


@part
def _sampled(a, low, count, order, samples, codes, hits, firsts):
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
