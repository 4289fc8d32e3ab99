"""Finds texts that other rows of the run have as well, in one pass.

Memory: 32 to 64 bytes per text, in a table of 64-bit hashes. Rows with the same prompt may have the same
text.
"""

import numba
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

_INITIAL = 1 << 14  # slots


class SameTexts:
    """Texts of one entity type, as hashes; white space does not count."""

    def __init__(self):
        self._slots, self._rows = np.zeros((_INITIAL, 2), np.uint64), 0

    def add(self, text: pa.Array, prompts: pa.Array) -> np.ndarray:
        """Add N texts with the hashes of their prompts.

        Returns (N,) bool: an earlier text is the same and answers another prompt. Empty texts are never.
        """
        plain = pc.utf8_trim(pc.replace_substring_regex(text, r"\s+", " "), " ")
        hashes = np.stack([_hashes(plain), _hashes(pc.fill_null(prompts, ""))], 1)
        while 2 * (self._rows + len(hashes)) > len(self._slots):
            self._grow()
        same = np.zeros(len(hashes), np.bool_)
        self._rows += _add(self._slots, hashes, same)
        return same & pc.not_equal(plain, "").to_numpy(zero_copy_only=False)

    def _grow(self) -> None:
        kept = self._slots[self._slots[:, 0] > 0]
        self._slots = np.zeros((2 * len(self._slots), 2), np.uint64)
        _add(self._slots, kept, np.zeros(len(kept), np.bool_))


def _hashes(values: pa.Array) -> np.ndarray:
    """(N,) uint64, none of them 0."""
    return pd.util.hash_array(values.to_numpy(zero_copy_only=False), categorize=False) | np.uint64(1)


@numba.njit(cache=True)
def _add(slots, hashes, same):
    """Add pairs of hashes of a text and its prompt, uint64 (N, 2), to an open hash table (S, 2)."""
    added, mask = 0, np.uint64(len(slots) - 1)
    for row in range(len(hashes)):
        at = (hashes[row, 0] >> np.uint64(1)) & mask
        while slots[at, 0] != 0 and slots[at, 0] != hashes[row, 0]:
            at = (at + np.uint64(1)) & mask
        if slots[at, 0] == 0:
            slots[at] = hashes[row]
            added += 1
        else:
            same[row] = slots[at, 1] != hashes[row, 1]
    return added
