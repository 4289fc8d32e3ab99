"""How long tonight's texts are beside the same entities' texts of the night before.

Entity by entity: tonight's stale rows are not like all rows (they are active, or new), so that the lengths of
two nights differ although nothing is wrong. A seeded sample bounds memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SAMPLE = 100_000  # texts of each entity type that are compared


class Sample:
    """About SAMPLE of tonight's texts, drawn by seed, by id with their tokens and their start.

    rows  how many rows there are to draw from
    """

    def __init__(self, rows: int, seed: int = 0):
        self._share = min(1.0, SAMPLE / max(rows, 1))
        self._random = np.random.default_rng(seed)
        self._batches: list[pa.RecordBatch] = []

    def add(self, ids: pa.Array, tokens: np.ndarray, texts: pa.Array) -> None:
        drawn = (self._random.random(len(ids)) < self._share) & (tokens > 0)
        rows = pa.array(drawn)
        columns = {"id": ids.filter(rows), "tokens": pa.array(tokens[drawn]),
                   "text": pc.utf8_slice_codeunits(texts.filter(rows), 0, 200)}
        self._batches.append(pa.RecordBatch.from_pydict(columns))

    def table(self) -> pa.Table:
        empty = {"id": pa.array([], pa.string()), "tokens": pa.array([], pa.int64()),
                 "text": pa.array([], pa.string())}
        table = pa.Table.from_batches(self._batches) if self._batches else pa.table(empty)
        return table.combine_chunks()


@dataclass(frozen=True)
class Pairs:
    """Texts of the same entities: ``new`` and ``old`` are (N,) tokens, tonight's and those before."""

    ids: pa.Array
    texts: pa.Array
    new: np.ndarray
    old: np.ndarray

    @property
    def ratio(self) -> np.ndarray:
        """(N,) how many times as long as before each text is."""
        return self.new / self.old

    def median_ratio(self) -> float:
        return float(np.median(self.ratio))

    def distance(self) -> float:
        """Largest difference of the two distributions' cumulative shares (Kolmogorov and Smirnov), 0 to 1."""
        at = np.union1d(self.new, self.old)
        below = (np.searchsorted(np.sort(side), at, "right") for side in (self.new, self.old))
        return float(np.abs(np.subtract(*below)).max() / len(self.new))

    def outside(self, most: float) -> np.ndarray:
        """(N,) bool: more than ``most`` times as long as before, or as short."""
        return self._change() > most

    def farthest(self, share: float) -> np.ndarray:
        """(N,) bool: the share of the texts whose length changed most."""
        bad = np.zeros(len(self.ratio), bool)
        count = int(np.ceil(share * len(bad) - 1e-9))
        bad[np.argsort(-self._change(), kind="stable")[:count]] = True
        return bad

    def _change(self) -> np.ndarray:
        return np.maximum(self.ratio, 1 / self.ratio)


def pair(sample: pa.Table, before: Iterator[pa.RecordBatch]) -> Pairs:
    """Join a sample with the texts before (entity_id, tokens): those that have one of a token or more."""
    ids = sample["id"].combine_chunks() if sample.num_rows else pa.array([], pa.string())
    old = np.zeros(len(ids), np.int64)
    for batch in before if len(ids) else ():
        place = pc.index_in(batch["entity_id"], value_set=ids)
        there = pc.is_valid(place)
        tokens = pc.fill_null(batch["tokens"], 0).filter(there)
        old[place.filter(there).to_numpy(zero_copy_only=False)] = tokens.to_numpy(zero_copy_only=False)
    kept = pa.array(old > 0)
    new = sample["tokens"].filter(kept).to_numpy()
    texts = sample["text"].filter(kept)
    return Pairs(ids.filter(kept), pa.chunked_array(texts).combine_chunks(), new, old[old > 0])
