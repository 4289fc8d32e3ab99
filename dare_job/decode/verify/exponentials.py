"""Exponentials in compiled code: what loops over scores need to be compiled to vector instructions.

By powers of 2 and a polynomial, which take a tenth of the time of ``math.exp``; the error is some 1e-7 of
each. With ``n = whole(x)``, exp(x) is 2**n, whose bits are ``power(n)``, times ``small(rest(x, n))``. One
loop over a block of scores for the first three and one for the last are compiled best.
"""

import math

import numba
import numpy as np

BLOCK = 256  # scores
LEAST = np.float32(-87.0)  # below it exp is no normal number
_LOG2_E, _LN2_HIGH = np.float32(math.log2(math.e)), np.float32(0.693359375)  # of which few bits are set
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
_TERMS = tuple(np.float32(1 / math.factorial(n)) for n in range(8))


@numba.njit
def whole(x):
    """The power of 2 that is taken out of exp(x); x float32 in [LEAST, 0]."""
    return np.int32(x * _LOG2_E - np.float32(0.5))


@numba.njit
def power(n):
    return (n + np.int32(127)) << np.int32(23)


@numba.njit
def rest(x, n):
    n = np.float32(n)
    return x - n * _LN2_HIGH - n * _LN2_LOW


@numba.njit
def small(r):
    """exp(r) of what is left."""
    value = _TERMS[7]
    value = value * r + _TERMS[6]
    value = value * r + _TERMS[5]
    value = value * r + _TERMS[4]
    value = value * r + _TERMS[3]
    value = value * r + _TERMS[2]
    value = value * r + _TERMS[1]
    return value * r + _TERMS[0]
