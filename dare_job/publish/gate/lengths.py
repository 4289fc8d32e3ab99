"""Compares the lengths of new texts with those of the previous texts of the same entities.

Texts are paired by entity: stale rows belong to active or new entities, so unpaired lengths of two runs
differ even if nothing is wrong. A seeded sample bounds memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SAMPLE = 100_000  # texts compared per entity type, about
_SAMPLED = pa.schema([("id", pa.string()), ("tokens", pa.int64()), ("text", pa.string())])


class Sample:
    """A seeded random sample of about SAMPLE new texts: id, number of tokens, first 200 characters.

    Parameters
    ----------
    rows
        Number of rows to sample from.
    """

    def __init__(self, rows: int, seed: int = 0):
        self._share = min(1.0, SAMPLE / max(rows, 1))
        self._random = np.random.default_rng(seed)
        self._batches: list[pa.RecordBatch] = []

    def add(self, ids: pa.Array, tokens: np.ndarray, texts: pa.Array) -> None:
        """Sample from N texts: ids and texts string (N,), and their numbers of tokens (N,)."""
        chosen = (self._random.random(len(ids)) < self._share) & (tokens > 0)
        rows = pa.array(chosen)
        columns = [ids.filter(rows), pa.array(tokens[chosen]),
                   pc.utf8_slice_codeunits(texts.filter(rows), 0, 200)]
        self._batches.append(pa.RecordBatch.from_arrays(columns, schema=_SAMPLED))

    def table(self) -> pa.Table:
        """The sampled texts: id, tokens, and the first 200 characters of the text."""
        return pa.Table.from_batches(self._batches, _SAMPLED)


@dataclass(frozen=True)
class Pairs:
    """Texts of the same entities; ``new`` and ``old``: (N,) number of tokens of the new and previous text."""

    ids: pa.Array
    texts: pa.Array
    new: np.ndarray
    old: np.ndarray

    @property
    def ratio(self) -> np.ndarray:
        """(N,) new length divided by previous length."""
        return self.new / self.old

    def median_ratio(self) -> float:
        """Median of new length divided by previous length; NaN without pairs."""
        return float(np.median(self.ratio))

    def distance(self) -> float:
        """Two-sample Kolmogorov-Smirnov statistic of the lengths, 0 to 1."""
        at = np.union1d(self.new, self.old)
        below = (np.searchsorted(np.sort(side), at, "right") for side in (self.new, self.old))
        return float(np.abs(np.subtract(*below)).max() / len(self.new))

    def outside(self, max_ratio: float) -> np.ndarray:
        """(N,) bool: the lengths differ by more than the factor ``max_ratio``, in either direction."""
        return self._change() > max_ratio

    def most_changed(self, share: float) -> np.ndarray:
        """(N,) bool: the ``share`` of the texts whose length changed most."""
        chosen = np.zeros(len(self.ratio), bool)
        count = int(np.ceil(share * len(chosen) - 1e-9))
        chosen[np.argsort(-self._change(), kind="stable")[:count]] = True
        return chosen

    def _change(self) -> np.ndarray:
        return np.maximum(self.ratio, 1 / self.ratio)


def pair(sample: pa.Table, previous: Iterator[pa.RecordBatch]) -> Pairs:
    """Join a sample with batches (entity_id, tokens) of the previous texts; empty texts are left out."""
    ids = sample["id"].combine_chunks()
    old = np.zeros(len(ids), np.int64)
    for batch in previous if len(ids) else ():
        positions = pc.index_in(batch["entity_id"], value_set=ids)
        matched = pc.is_valid(positions)
        tokens = pc.fill_null(batch["tokens"], 0).filter(matched)
        old[positions.filter(matched).to_numpy(zero_copy_only=False)] = tokens.to_numpy(zero_copy_only=False)
    kept = pa.array(old > 0)
    return Pairs(ids.filter(kept), sample["text"].filter(kept).combine_chunks(),
                 sample["tokens"].filter(kept).to_numpy(), old[old > 0])
