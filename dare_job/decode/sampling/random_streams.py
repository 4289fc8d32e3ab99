"""Counter-based random streams: uniforms that depend only on seed, row key, text position and purpose.

A row's uniforms are the same whatever shares its batch, in whichever order rows come, and however many were
sampled before. The generator is Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011), keyed by a hash of seed and row key.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from dare_job.errors import ConfigError

# Purposes. Uniforms of different purposes are independent.
DRAFT, VERIFY, RESIDUAL, CHOICE = range(4)

_MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_STEPS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_SPARE, _UNIT = np.uint64(11), 2.0**-53


class RowKeys:
    """Derives the Philox key of each row from one seed."""

    def __init__(self, seed: int):
        """Set the seed, which all rows share.

        Raises
        ------
        ConfigError
            The seed is not an integer from 0 to 2**63 - 1.
        """
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
            raise ConfigError(f"seed is {seed!r}; it must be an integer from 0 to 2**63 - 1")
        self._seed = seed
        self._last: tuple[Sequence, np.ndarray] = ((), np.empty((0, 2), np.uint64))

    def keys(self, requests: Sequence) -> np.ndarray:
        """Return keys uint64 (R, 2) of requests, by ``Request.random_key``; cached by sequence object."""
        cached_for, keys = self._last
        if requests is not cached_for:
            keys = self.keys_of(request.random_key for request in requests)
            self._last = requests, keys
        return keys

    def keys_of(self, ids: Iterable) -> np.ndarray:
        """Return keys uint64 (R, 2) of ids.

        Raises
        ------
        ConfigError
            An id is neither text, bytes, an integer nor a tuple of these.
        """
        digests = [hashlib.blake2b(_encoded((self._seed, name)), digest_size=16).digest() for name in ids]
        return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2).astype(np.uint64)


class RowUniforms(NamedTuple):
    """Uniforms of R rows at one text position each, for one purpose: keys uint64 (R, 2), places int (R,)."""

    keys: np.ndarray
    places: np.ndarray
    purpose: int

    def __call__(self, rows: np.ndarray, counters: np.ndarray, count: int) -> np.ndarray:
        """Return uniforms float64 (M, count) of rows (M,), as ``uniforms``."""
        return uniforms(self.keys[rows], self.places[rows], self.purpose, counters, count)


def uniforms(keys: np.ndarray, places: np.ndarray, purpose: int, counters: np.ndarray,
             count: int) -> np.ndarray:
    """Return uniforms float64 (M, count) in [0, 1), multiples of 2**-53, independent for different arguments.

    The first values do not depend on the count.

    Parameters
    ----------
    keys : uint64 (M, 2)
        Philox key of each entry's row.
    places : int (M,)
        Position in the row's text, prompt included.
    purpose
        DRAFT, VERIFY, RESIDUAL or CHOICE.
    counters : int (M,)
        Index of one of several samples at the position, such as a tree node.
    count
        Uniforms per entry.
    """
    out = np.empty((len(keys), count))
    _fill(keys, places.astype(np.uint64), np.uint64(purpose), counters.astype(np.uint64), out)
    return out


def _encoded(value: Any) -> bytes:
    """Encode a value as bytes injectively, the same in every process and on every machine."""
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_encoded, value)) + b")"
    if isinstance(value, np.integer):
        value = int(value)
    if not isinstance(value, str | bytes | int):
        raise ConfigError(f"row id {value!r} is {type(value).__name__}; sampling needs row ids that are text "
                          "or integers, so that they are the same on every machine")
    kind = b"b" if isinstance(value, bytes) else b"s" if isinstance(value, str) else b"i"
    encoded = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return kind + str(len(encoded)).encode() + b":" + encoded


@numba.njit
def _multiply(a, b):
    """Return the high and the low 64 bits of the 128-bit product."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    low, middle = a_low * b_low, a_high * b_low
    carry = (low >> _HALF) + (middle & _LOW)
    carry += a_low * b_high  # below 2**64: the sum of two halves and a product of halves
    return a_high * b_high + (middle >> _HALF) + (carry >> _HALF), a * b


@numba.njit
def _philox(c0, c1, c2, c3, key0, key1):
    for _ in range(10):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0 += _STEPS[0]
        key1 += _STEPS[1]
    return c0, c1, c2, c3


@numba.njit(cache=True)
def _fill(keys, places, purpose, counters, out):
    rows, count = out.shape
    for r in range(rows):
        for block in range((count + 3) // 4):
            four = _philox(np.uint64(block), places[r], counters[r], purpose, keys[r, 0], keys[r, 1])
            for i in range(min(4, count - 4 * block)):
                out[r, 4 * block + i] = (four[i] >> _SPARE) * _UNIT
