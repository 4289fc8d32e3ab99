"""How far the mean of a history's item vectors moves with its newest entries."""

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.data.id_rows import IdRows
from dare_job.embed.vectors import read_vectors
from dare_job.storage import paths


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

    def moved(self, histories: pa.Array) -> pa.ListArray:
        """How far each history (n,) of items moved since each of its places.

        Parameters
        ----------
        histories
            Lists of structs with ``item_id``, oldest first.

        Returns
        -------
        list of float32 (n,)
            At place j of a history of m items: 1 - cosine, clipped to 0 to 1, of the mean of the first j + 1
            vectors and of all m. 0 if no item has a vector.
        """
        lengths = pc.fill_null(pc.list_value_length(histories), 0).to_numpy(zero_copy_only=False).astype(int)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        named = histories.flatten().field("item_id").dictionary_encode()
        rows = self._rows.find(named.dictionary.to_pylist())[named.indices.to_numpy(zero_copy_only=False)]
        sums = np.cumsum(self._vectors[rows], axis=0, dtype=np.float64)
        before = np.vstack([np.zeros((1, sums.shape[1])), sums])[offsets[:-1]]
        of = np.repeat(np.arange(len(lengths)), lengths)
        sums -= before[of]
        ends = sums[offsets[1:][of] - 1]
        norms = np.linalg.norm(sums, axis=1) * np.linalg.norm(ends, axis=1)
        cosine = np.einsum("nd,nd->n", sums, ends) / norms.clip(1e-12)
        values = np.where(np.linalg.norm(ends, axis=1) < 1e-6, 0.0, 1.0 - cosine).clip(0, 1)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.float32()))


@lru_cache(maxsize=1)
def item_vectors(path: str, version: str) -> ItemVectors:
    """The vectors of a VECTORS folder. A worker reads them once per ``version``."""
    return ItemVectors(*read_vectors(paths.path(path)))
