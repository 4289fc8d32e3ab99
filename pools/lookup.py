"""Reading a frozen index from compiled code, by the addresses of its arrays.

``a`` is the index's ``addresses`` (int64 (8,)); an interval is (low, count) in its suffix array.
"""

from pools.jit import compiled, load_i32, load_u8, load_u16

TOKENS, WIDTH, SUFFIXES, SHARED, VOCAB, STARTS, SIZE, DEPTH = range(8)


@compiled
def code_at(a, suffix, offset):
    """Code that stands ``offset`` behind the start of the suffix of rank ``suffix``."""
    position = load_i32(a[SUFFIXES] + 4 * suffix) + offset
    if a[WIDTH] == 2:
        return load_u16(a[TOKENS] + 2 * position)
    return load_i32(a[TOKENS] + 4 * position)


@compiled
def token_of(a, code):
    return load_i32(a[VOCAB] + 4 * (code - 1))


@compiled
def code_of(a, token):
    """Code of a token id, 0 where the pool does not know it."""
    low, high = 0, a[SIZE]
    while low < high:
        middle = (low + high) >> 1
        if load_i32(a[VOCAB] + 4 * middle) < token:
            low = middle + 1
        else:
            high = middle
    if low < a[SIZE] and load_i32(a[VOCAB] + 4 * low) == token:
        return low + 1
    return 0


@compiled
def first(a, code):
    """Interval of the suffixes that begin with ``code``."""
    low = load_i32(a[STARTS] + 4 * code)
    return low, load_i32(a[STARTS] + 4 * (code + 1)) - low


@compiled
def narrow(a, low, count, offset, code):
    """Part of an interval of ``offset`` equal codes in which ``code`` comes next."""
    end = low + count
    left, right = low, end
    while left < right:
        middle = (left + right) >> 1
        if code_at(a, middle, offset) < code:
            left = middle + 1
        else:
            right = middle
    start = left
    if start == end or code_at(a, start, offset) != code:
        return start, 0
    right, step = end, 1
    while left + step < end and code_at(a, left + step, offset) == code:  # gallop: most answers are short
        left += step
        step <<= 1
    right = min(end, left + step)
    left += 1
    while left < right:
        middle = (left + right) >> 1
        if code_at(a, middle, offset) <= code:
            left = middle + 1
        else:
            right = middle
    return start, left - start


@compiled
def locate(a, codes, order):
    """Interval of the context ``codes[order - 1], ..., codes[0]`` (nearest first, none of them 0)."""
    low, count = first(a, codes[order - 1])
    for offset in range(1, order):
        if count == 0:
            return low, 0
        low, count = narrow(a, low, count, offset, codes[order - 1 - offset])
    return low, count


@compiled
def shared_before(a, suffix):
    return load_u8(a[SHARED] + suffix)
