"""Vectors in compiled functions, rounded where transformers rounds; bfloat16 is int16 (``host_array``)."""

import numba
import numpy as np
from numba import types
from numba.extending import overload


def load(source, out):
    """Copy values to float32."""


@overload(load)
def _compiled_load(source, out):
    if source.dtype == types.int16:
        def load(source, out):
            words = out.view(np.uint32)
            for d in range(len(source)):
                words[d] = np.uint32(np.uint16(source[d])) << np.uint32(16)
    else:
        def load(source, out):
            for d in range(len(source)):
                out[d] = source[d]
    return load


def store(values, out):
    """Copy float32 values to the type of ``out``, rounded to the nearest, and round ``values`` too."""


@overload(store)
def _compiled_store(values, out):
    if out.dtype == types.int16:
        def store(values, out):
            words = values.view(np.uint32)
            for d in range(len(out)):
                word = words[d]
                high = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
                words[d] = high << np.uint32(16)
                out[d] = np.int16(high)
    else:
        def store(values, out):
            for d in range(len(out)):
                out[d] = values[d]
    return store


SUMS = {"reassoc", "contract"}  # sums in any order, so that they are compiled to vector instructions


@numba.njit(fastmath=SUMS)
def normalize(values, weight, epsilon, out):
    """Apply a root mean square norm to ``values`` float32 (D,) in place, and write them to ``out``."""
    total = np.float32(0)
    for d in range(len(values)):
        total += values[d] * values[d]
    scale = np.float32(1) / np.sqrt(total / np.float32(len(values)) + epsilon)
    for d in range(len(values)):
        values[d] *= scale
    store(values, out)
    for d in range(len(values)):
        values[d] *= weight[d]
    store(values, out)
