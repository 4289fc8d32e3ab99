"""Texts whose end repeats the same n-gram over and over: what greedy decoding falls into when it fails."""

import numba
import numpy as np

AFTER = 8  # other tokens that may follow a loop: a full stop, an end of text


def looping(tokens: np.ndarray, offsets: np.ndarray, longest: int, repeats: int, least: int) -> np.ndarray:
    """Tokens of the loop at each text's end, 0 where there is none.

    A text loops where, for some n <= ``longest``, a run of it equals itself moved by n tokens, holds its
    n-gram ``repeats`` times or more and ``least`` tokens or more, and fewer than AFTER other tokens follow.
    Of several n the smallest counts, with the whole of its run.

    tokens   (T,) int32, the texts one behind the other
    offsets  (N + 1,) int64, where each begins
    """
    found = np.zeros(len(offsets) - 1, np.int32)
    _fill(tokens, offsets, longest, repeats, least, found)
    return found


@numba.njit(cache=True, nogil=True)
def _fill(tokens, offsets, longest, repeats, least, found):
    for row in range(len(found)):
        begin, end = offsets[row], offsets[row + 1]
        for n in range(1, longest + 1):
            wanted = max(repeats * n, least)
            if wanted > end - begin:
                break
            covered = _run(tokens, begin, end, n)
            if covered >= wanted:
                found[row] = covered
                break


@numba.njit(cache=True, nogil=True)
def _run(tokens, begin, end, n):
    """Length of the longest run of period n that fewer than AFTER tokens follow."""
    best, i = 0, end - 1
    while i - n >= begin and end - 1 - i < AFTER:
        last = i
        while i - n >= begin and tokens[i] == tokens[i - n]:
            i -= 1
        if last > i:
            best = max(best, last - i + n)
        else:
            i -= 1
    return best
