"""Finds rows by id."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

_BATCH = 10_000  # ids that are converted to Python strings at once


class IdRows:
    """Row numbers of an array of distinct ids.

    Sorted hashes locate ids and take 16 bytes per id. A dictionary of a million ids would take 200 MB.

    Parameters
    ----------
    ids : string array (n,)
    """

    def __init__(self, ids: pa.Array):
        self._ids = ids
        parts = (ids.slice(start, _BATCH).to_pylist() for start in range(0, len(ids), _BATCH))
        hashes = np.fromiter((hash(id_) for part in parts for id_ in part), np.int64, len(ids))
        self._rows = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._rows]

    def find(self, wanted: Sequence[str]) -> np.ndarray:
        """Row numbers int64 (k,) of ``wanted`` (k,); -1 of ids that are not there."""
        hashes = np.array([hash(id_) for id_ in wanted], np.int64)
        first, end = (self._hashes.searchsorted(hashes, side) for side in ("left", "right"))
        place = np.repeat(np.arange(len(wanted)), end - first)  # of each candidate: rows of equal hash
        offset = np.arange(len(place)) - np.repeat(np.cumsum(end - first) - (end - first), end - first)
        rows = self._rows[first[place] + offset]
        found = np.full(len(wanted), -1, np.int64)
        for at, row, id_ in zip(place.tolist(), rows.tolist(), self._ids.take(rows).to_pylist(), strict=True):
            if id_ == wanted[at]:
                found[at] = row
        return found
