"""What a forward costs: milliseconds against rows and queries.

How long a forward of this model takes on this device, against rows and queries a row.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import build
from dare_job.errors import DataError
from pools.tree import ROOT, DraftBatch

EXPECTED_FORMAT = ('write {"latency_ms": {"8": {"1": 20.5, "17": 23.1}}}: milliseconds by batch '
                   'size, then by queries per row')


@dataclass(frozen=True, eq=False)
class LatencyCurve:
    """Milliseconds of a forward, piecewise linear in queries a row and in rows.

    points  {rows: (queries, ms)}, both float64 (n,): queries ascending from 1, ms never falling
    """

    points: Mapping[int, tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, table: Mapping[str, Mapping[str, float]], name: str) -> "LatencyCurve":
        """A curve of {rows: {queries a row: ms}}; a time above that of more queries is noise and lowered.

        Raises DataError naming ``name`` and what is wrong.
        """
        if not isinstance(table, dict) or not table:
            raise DataError(f"{name} holds no latency curve: {EXPECTED_FORMAT}")
        points = {}
        for batch, row in table.items():
            if not isinstance(row, dict) or not row:
                raise DataError(f"{name}: batch {batch} has no curve: {EXPECTED_FORMAT}")
            where = f"{name}: batch {batch}"
            ms = {_at_least_one(q, f"{where}: queries", float): _milliseconds(value, f"{where}, {q} queries")
                  for q, value in row.items()}
            if 1 not in ms:
                raise DataError(f"{name}: batch {batch} lacks 1 query a row, which is plain decoding")
            queries = sorted(ms)
            levelled = np.minimum.accumulate([ms[q] for q in reversed(queries)])[::-1]
            points[_at_least_one(batch, f"{name}: batch", int)] = (np.array(queries, float), levelled)
        return cls(dict(sorted(points.items())))

    @property
    def batches(self) -> list[int]:
        """Batch sizes of the curve, ascending; those between them can be asked for too."""
        return list(self.points)

    @property
    def common_queries(self) -> int:
        """The most queries a row that every batch size of the curve has."""
        return int(min(queries[-1] for queries, _ in self.points.values()))

    def max_queries(self, batch: int) -> int:
        """The most queries a row that the curve has for so many rows; behind it, ``steps`` supposes."""
        around = {min(self.batches, key=lambda b: (b < batch, abs(b - batch))),
                  min(self.batches, key=lambda b: (b > batch, abs(b - batch)))}
        return int(min(self.points[b][0][-1] for b in around))

    def ms(self, batch: int, queries: float) -> float:
        """Milliseconds of a forward; batch and queries must lie within the curve."""
        rows = self.batches
        return float(np.interp(batch, rows, [np.interp(queries, *self.points[b]) for b in rows]))

    def forward_ms(self, rows: int, nodes: int) -> np.ndarray:
        """float64 (nodes + 1,): milliseconds of a forward of ``rows`` roots and 0 ... nodes drafts in all.

        Behind the curve's end it goes on as steep as its last piece.
        """
        known = self.batches
        queries = 1 + np.arange(nodes + 1) / rows
        high = int(np.clip(np.searchsorted(known, rows), 1, len(known) - 1)) if len(known) > 1 else 0
        upper = _extrapolated(queries, *self.points[known[high]])
        if not high:
            return upper * max(1.0, rows / known[0]) if rows > known[0] else upper
        low = known[high - 1]
        share = max(0.0, (rows - low) / (known[high] - low))
        lower = _extrapolated(queries, *self.points[low])
        return np.maximum(lower + share * (upper - lower), 1e-6)


def _extrapolated(queries: np.ndarray, known: np.ndarray, ms: np.ndarray) -> np.ndarray:
    found = np.interp(queries, known, ms)
    if len(known) > 1:
        slope = max(0.0, (ms[-1] - ms[-2]) / (known[-1] - known[-2]))
        found += slope * np.maximum(0.0, queries - known[-1])
    return found


def _at_least_one(text: str, name: str, kind: type) -> float:
    try:
        found = kind(text)
    except ValueError:
        found = 0
    if not 1 <= found < float("inf"):
        raise DataError(f"{name}: {text!r} is no number from 1: {EXPECTED_FORMAT}")
    return found


def _milliseconds(value, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise DataError(f"{name}: {value!r} is no time above 0 in milliseconds")
    return float(value)

CONTEXT_TOKENS = 128  # tokens before the root, where the model takes as many


def latency_ms(target: Target, batches: Sequence[int], queries: Sequence[int],
               repeats: int = 5) -> dict[str, dict[str, float]]:
    """Median milliseconds of a forward: {batch: {queries a row: ms}}, keys as text for JSON.

    All with the same number of tokens before the root, so that they can be compared. Sizes of ``queries``
    that the model's context does not hold with one token before are left out.
    """
    sizes, context = _supported_sizes(target, queries)
    return {str(b): {str(q): round(float(np.median(_forward_times(target, b, q, context, repeats))), 3)
                     for q in sizes} for b in batches}


def _supported_sizes(target: Target, queries: Sequence[int]) -> tuple[list[int], int]:
    """Of ``queries`` those that the model has positions for, and the context to measure them in."""
    limit = target.traits.context or CONTEXT_TOKENS + max(queries)
    sizes = [q for q in queries if q < limit]
    return sizes, min(CONTEXT_TOKENS, limit - max(sizes, default=0))


def _forward_times(target: Target, batch: int, queries: int, context: int, repeats: int) -> list[float]:
    """Milliseconds of as many forwards over trees of one path, two more left out."""
    nodes, lengths = queries - 1, np.full(batch, context)
    chain = np.tile(np.arange(ROOT, nodes - 1, dtype=np.int32), (batch, 1))
    zeros = np.zeros((batch, nodes), np.int32)
    drafts = DraftBatch(zeros, chain, np.full(batch, nodes, np.int32), None, zeros.astype(np.uint8))
    tree = build(np.zeros(batch, np.int64), drafts, np.full(batch, queries)).to(target.device)
    cache = target.new_cache(batch)
    cache.reserve(context + queries)  # what stands there costs the same
    times = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        target.forward(cache, tree, lengths)[0, 0].item()  # waits for the device
        times.append(1e3 * (time.perf_counter() - started))
    return times[2:]
