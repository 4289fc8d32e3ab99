"""Vectors of items by id, and how far a prompt's history moved with its newest entries."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.embed.vectors import read_vectors
from dare_job.refresh.value import RECENCY
from dare_job.storage import paths

_BATCH = 10_000  # ids that are converted to Python strings at once
_AT_ONCE = 1 << 23  # numbers in the vectors of the histories that are compared at once: 64 MiB


class ItemVectors:
    """Vectors of items, of length 1, by id.

    Parameters
    ----------
    ids : string array (n,)
    vectors : (n, d)
    """

    def __init__(self, ids: pa.Array, vectors: np.ndarray):
        self._rows = IdRows(ids)
        scaled = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
        self._vectors = np.vstack([scaled, np.zeros((1, vectors.shape[1]))]).astype(np.float32)  # -1: none

    def moved(self, histories: pa.Array, shown: int) -> pa.ListArray:
        """How far the last ``shown`` items of each history (n,) are from the ones before, by new entries.

        An item weighs RECENCY times as much as the next newer one.

        Parameters
        ----------
        histories
            Lists of structs with ``item_id``, oldest first; of ``2 * shown`` items nothing is left out.

        Returns
        -------
        list of float32 (n,)
            At place k, from 0 to the smaller of ``shown`` and the items there are: 1 - cosine, clipped to 0
            to 1, of the mean of the last ``shown`` vectors, and of the last ``shown`` before the k newest. 1
            if nothing was before them; 0 if no item has a vector now.
        """
        sizes = pc.fill_null(pc.list_value_length(histories), 0).to_numpy(zero_copy_only=False).astype(int)
        named = histories.flatten().field("item_id").dictionary_encode()
        rows = self._rows.find(named.dictionary.to_pylist())[named.indices.to_numpy(zero_copy_only=False)]
        rows, ends = np.append(rows, -1), np.cumsum(sizes)
        counts = np.minimum(sizes, shown) + 1
        moved, offsets = np.empty((len(sizes), shown + 1), np.float32), np.append(0, np.cumsum(counts))
        place = np.arange(2 * shown)  # from the newest
        step = max(1, _AT_ONCE // (len(place) * max(1, self._vectors.shape[1])))
        for start in range(0, len(sizes), step):
            part = slice(start, start + step)
            newest = np.where(place < sizes[part, None], ends[part, None] - 1 - place, -1)
            moved[part] = self._moved(rows[newest], shown)
        kept = np.arange(shown + 1) < counts[:, None]
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(moved[kept]))

    def _moved(self, rows: np.ndarray, shown: int) -> np.ndarray:
        """(n, shown + 1) of ``moved``, of row numbers (n, 2 * shown), newest first; -1: no vector."""
        weights = RECENCY ** np.arange(2 * shown)
        weighted = self._vectors[rows] * weights[:, None]
        sums = np.cumsum(weighted[:, ::-1], axis=1)[:, ::-1]  # of an item and all older ones
        sums = np.concatenate([sums, np.zeros_like(sums[:, :1])], axis=1)
        then = (sums[:, :shown + 1] - sums[:, shown:]) / weights[:shown + 1, None]
        norms = np.linalg.norm(then, axis=2)
        cosine = np.einsum("nkd,nd->nk", then, then[:, 0]) / (norms * norms[:, :1]).clip(1e-12)
        return np.where(norms[:, :1] < 1e-6, 0.0, 1.0 - cosine).clip(0, 1)


@lru_cache(maxsize=1)
def item_vectors(path: str, version: str) -> ItemVectors:
    """The vectors of a VECTORS folder. A worker reads them once per ``version``."""
    return ItemVectors(*read_vectors(paths.path(path)))


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
        numbers = np.full(len(wanted), -1, np.int64)
        for at, row, id_ in zip(place.tolist(), rows.tolist(), self._ids.take(rows).to_pylist(), strict=True):
            if id_ == wanted[at]:
                numbers[at] = row
        return numbers
