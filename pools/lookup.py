"""Reading a frozen index from compiled code, by the addresses of its arrays.

``a`` is the index's ``addresses`` (int64 (13,)); an interval is (low, count) in its suffix array.
"""

import numpy as np

from pools.jit import array_at, load_f64, load_i32, load_u8, load_u16, part

TOKENS, WIDTH, SUFFIXES, RANKS, SHARED, LEAST, VOCAB, STARTS, WEIGHTS, SIZE, DEPTH, COUNT, KIND = range(13)
ALPHA, BETA, LIVE = range(3)  # rows of WEIGHTS


@part
def pool_at(address):
    """The addresses of the index whose ``address`` this is."""
    return array_at(address, 13, np.int64)


@part
def code(a, position):
    """Code at a position of the pool's tokens."""
    if a[WIDTH] == 2:
        return load_u16(a[TOKENS] + 2 * position)
    return load_i32(a[TOKENS] + 4 * position)


@part
def code_at(a, suffix, offset):
    """Code that stands ``offset`` behind the start of the suffix of rank ``suffix``."""
    return code(a, load_i32(a[SUFFIXES] + 4 * suffix) + offset)


@part
def token_of(a, code):
    return load_i32(a[VOCAB] + 4 * (code - 1))


@part
def code_of(a, token):
    """Code of a token id, 0 where the pool does not know it."""
    low, left = 0, a[SIZE]
    while left > 1:  # without a branch, which would be guessed wrong every other time
        half = left >> 1
        low += half * (load_i32(a[VOCAB] + 4 * (low + half - 1)) < token)
        left -= half
    low += left > 0 and load_i32(a[VOCAB] + 4 * low) < token
    if low < a[SIZE] and load_i32(a[VOCAB] + 4 * low) == token:
        return low + 1
    return 0


@part
def shared_before(a, suffix):
    """Codes that the suffix shares with the one before it."""
    return load_u8(a[SHARED] + suffix)


@part
def first(a, code):
    """Interval of the suffixes that begin with ``code``."""
    low = load_i32(a[STARTS] + 4 * code)
    return low, load_i32(a[STARTS] + 4 * (code + 1)) - low


@part
def weight(a, row, order):
    """Learned weight of a context order; row is ALPHA, BETA or LIVE."""
    return load_f64(a[WEIGHTS] + 8 * (row * a[DEPTH] + order))


@part
def narrow(a, low, count, offset, code):
    """Part of an interval of ``offset`` equal codes in which ``code`` comes next."""
    left, right = low, low + count
    while left < right:
        middle = (left + right) >> 1
        if code_at(a, middle, offset) < code:
            left = middle + 1
        else:
            right = middle
    return left, run(a, left, low + count, offset, code)


@part
def run(a, left, end, offset, code):
    """How many suffixes from ``left`` on have ``code`` at ``offset``: galloping, as most runs are short."""
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
