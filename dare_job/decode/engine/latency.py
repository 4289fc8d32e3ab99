"""Latency of a forward pass by rows and queries per row."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dare_job.decode.engine.prefill import chain_drafts
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, build
from dare_job.errors import DataError

CONTEXT_TOKENS = 128  # before the root, or fewer if the model's context is shorter
EXPECTED_FORMAT = ('write {"latency_ms": {"8": {"1": 20.5, "17": 23.1}}}: milliseconds by batch '
                   'size, then by queries per row')


@dataclass(frozen=True, eq=False)
class LatencyCurve:
    """Milliseconds of a forward pass, piecewise linear in queries per row and in rows.

    Attributes
    ----------
    points : mapping of int to (float64 (n,), float64 (n,))
        By rows: queries per row, ascending from 1, and milliseconds, never decreasing.
    """

    points: Mapping[int, tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, table: Mapping[str, Mapping[str, float]], name: str) -> "LatencyCurve":
        """Make a curve from a table {rows: {queries per row: ms}}.

        A time above that of more queries is noise, and lowered.

        Raises
        ------
        DataError
            The table is invalid; the message begins with ``name``.
        """
        if not isinstance(table, dict) or not table:
            raise DataError(f"{name} has no latency curve: {EXPECTED_FORMAT}")
        points = {}
        for batch, times in table.items():
            if not isinstance(times, dict) or not times:
                raise DataError(f"{name}: batch {batch} has no curve: {EXPECTED_FORMAT}")
            where = f"{name}: batch {batch}"
            ms = {_at_least_one(q, f"{where}: queries", float): _milliseconds(value, f"{where}, {q} queries")
                  for q, value in times.items()}
            if 1 not in ms:
                raise DataError(f"{name}: batch {batch} lacks 1 query per row (autoregressive decoding)")
            queries = sorted(ms)
            monotone = np.minimum.accumulate([ms[q] for q in reversed(queries)])[::-1]
            points[_at_least_one(batch, f"{name}: batch", int)] = (np.array(queries, float), monotone)
        return cls(dict(sorted(points.items())))

    @property
    def batches(self) -> list[int]:
        """Measured batch sizes, ascending."""
        return list(self.points)

    @property
    def common_queries(self) -> int:
        """Largest number of queries per row that was measured for every batch size."""
        return int(min(queries[-1] for queries, _ in self.points.values()))

    def max_queries(self, batch: int) -> int:
        """Return the most queries per row that were measured for about this many rows."""
        around = {min(self.batches, key=lambda b: (b < batch, abs(b - batch))),
                  min(self.batches, key=lambda b: (b > batch, abs(b - batch)))}
        return int(min(self.points[b][0][-1] for b in around))

    def ms(self, batch: int, queries: float) -> float:
        """Return milliseconds of a forward pass; ``batch`` and ``queries`` (per row) within the curve."""
        rows = self.batches
        return float(np.interp(batch, rows, [np.interp(queries, *self.points[b]) for b in rows]))

    def forward_ms(self, rows: int, nodes: int) -> np.ndarray:
        """Return milliseconds of a forward pass with 0 to ``nodes`` draft nodes in all, float64 (nodes + 1,).

        Beyond its end, the curve is extrapolated with the slope of its last piece.
        """
        batches = self.batches
        queries = 1 + np.arange(nodes + 1) / rows
        high = int(np.clip(np.searchsorted(batches, rows), 1, len(batches) - 1)) if len(batches) > 1 else 0
        upper = _extrapolated(queries, *self.points[batches[high]])
        if not high:
            return upper * max(1.0, rows / batches[0]) if rows > batches[0] else upper
        low = batches[high - 1]
        share = max(0.0, (rows - low) / (batches[high] - low))
        lower = _extrapolated(queries, *self.points[low])
        return np.maximum(lower + share * (upper - lower), 1e-6)


def _extrapolated(queries: np.ndarray, measured: np.ndarray, ms: np.ndarray) -> np.ndarray:
    times = np.interp(queries, measured, ms)
    if len(measured) > 1:
        slope = max(0.0, (ms[-1] - ms[-2]) / (measured[-1] - measured[-2]))
        times += slope * np.maximum(0.0, queries - measured[-1])
    return times


def _at_least_one(text: str, name: str, kind: type) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 1 <= value < float("inf"):
        raise DataError(f"{name}: {text!r} is not a number of at least 1: {EXPECTED_FORMAT}")
    return value


def _milliseconds(value, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise DataError(f"{name}: {value!r} is not a time in milliseconds above 0")
    return float(value)


def latency_ms(target: Target, batches: Sequence[int], queries: Sequence[int],
               repeats: int = 5) -> dict[str, dict[str, float]]:
    """Measure the median milliseconds of a forward pass.

    All measurements have the same number of tokens before the root. Values of ``queries`` that do not fit
    into the model's context are left out.

    Parameters
    ----------
    target : Target
    batches, queries : sequence of int
        Numbers of rows, and of queries per row.
    repeats : int

    Returns
    -------
    dict
        {batch: {queries per row: ms}}, with strings as keys for JSON.
    """
    sizes, context = _supported_sizes(target, queries)
    return {str(b): {str(q): round(float(np.median(_forward_times(target, b, q, context, repeats))), 3)
                     for q in sizes} for b in batches}


def _supported_sizes(target: Target, queries: Sequence[int]) -> tuple[list[int], int]:
    """Return the values of ``queries`` that fit into the model's context, and the tokens before the root."""
    limit = target.traits.context or CONTEXT_TOKENS + max(queries)
    sizes = [q for q in queries if q < limit]
    return sizes, min(CONTEXT_TOKENS, limit - max(sizes, default=0))


def chains(rows: int, queries: int) -> Tree:
    """Return trees of one path with as many queries for each row, the root included."""
    drafts = chain_drafts([np.zeros(queries - 1, np.int32)] * rows)
    return build(np.zeros(rows, np.int64), drafts, np.full(rows, queries))


def _forward_times(target: Target, batch: int, queries: int, context: int, repeats: int) -> list[float]:
    """Return milliseconds of ``repeats`` forward passes over single-path trees, after two to warm up."""
    tree, lengths = chains(batch, queries).to(target.device), np.full(batch, context)
    cache = target.new_cache(batch)
    cache.reserve(context + queries)  # the content does not matter
    times = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        target.forward(cache, tree, lengths)[0, 0].item()  # waits for the device
        times.append(1e3 * (time.perf_counter() - started))
    return times[2:]
