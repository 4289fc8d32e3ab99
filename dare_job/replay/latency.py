"""What a forward costs: a latency curve from a file, or measured with a model here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dare_job.errors import ConfigError, DataError

_QUERIES = (1, 2, 3, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129, 257, 513)
_SHAPE = ('write {"latency_ms": {"8": {"1": 20.5, "17": 23.1}}}: milliseconds by batch size, then by queries '
          "a row")


@dataclass(frozen=True)
class Curve:
    """Milliseconds of a forward, piecewise linear in queries a row and in rows.

    points  {rows: (queries, ms)}, both float64 (n,): queries ascending from 1, ms never falling
    """

    points: Mapping[int, tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, table: Mapping[str, Mapping[str, float]], name: str) -> "Curve":
        """A curve of {rows: {queries a row: ms}}; a time above that of more queries is noise and lowered.

        Raises DataError naming ``name`` and what is wrong.
        """
        if not isinstance(table, dict) or not table:
            raise DataError(f"{name} holds no latency curve: {_SHAPE}")
        points = {}
        for batch, row in table.items():
            if not isinstance(row, dict) or not row:
                raise DataError(f"{name}: batch {batch} has no curve: {_SHAPE}")
            where = f"{name}: batch {batch}"
            ms = {_count(q, f"{where}: queries"): _time(value, f"{where}, {q} queries")
                  for q, value in row.items()}
            if 1 not in ms:
                raise DataError(f"{name}: batch {batch} lacks 1 query a row, which is plain decoding")
            queries = sorted(ms)
            levelled = np.minimum.accumulate([ms[q] for q in reversed(queries)])[::-1]
            points[_count(batch, f"{name}: batch")] = (np.array(queries, float), levelled)
        return cls(dict(sorted(points.items())))

    @property
    def batches(self) -> list[int]:
        """Batch sizes of the curve, ascending; those between them can be asked for too."""
        return list(self.points)

    @property
    def queries(self) -> int:
        """The most queries a row that every batch size of the curve has."""
        return int(min(queries[-1] for queries, _ in self.points.values()))

    def ms(self, batch: int, queries: int) -> float:
        """Milliseconds of a forward; batch and queries must lie within the curve."""
        rows = self.batches
        return float(np.interp(batch, rows, [np.interp(queries, *self.points[b]) for b in rows]))


def read(path: Path) -> Curve:
    """The curve of a JSON file: as ``measure`` has it, or under ``latency_ms`` as ``check`` prints it.

    Raises DataError naming the file and what is wrong.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"--latency {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"--latency {path} is not JSON: {error}") from None
    if isinstance(found, dict) and "latency_ms" in found:
        found = found["latency_ms"]
    return Curve.of(found, f"--latency {path}")


def measure(model: str, batches: Sequence[int], nodes: int, dtype: str = "float32",
            device: str = "auto") -> dict[str, dict[str, float]]:
    """{batch: {queries a row: ms}} of a model on this machine, up to ``nodes`` drafts a row.

    Prints each batch size as it is done. Raises ModelError, ConfigError as loading the model does.
    """
    from dare_job.decode import Target
    from dare_job.decode.latency import latency_ms
    from dare_job.model_files import resolve

    target = Target.load(resolve(model), dtype, device, False)
    queries = sorted({q for q in _QUERIES if q <= nodes} | {nodes + 1})
    found = {}
    for batch in batches:
        found |= latency_ms(target, [batch], queries, repeats=11)
        times = ", ".join(f"{q}: {ms}" for q, ms in found[str(batch)].items())
        print(f"batch {batch}, milliseconds by queries a row: {times}", flush=True)
    return found


def within(curve: Curve, batches: Sequence[int], nodes: int) -> None:
    """Raises ConfigError where the curve does not reach a batch size, or a draft of ``nodes``."""
    low, high = curve.batches[0], curve.batches[-1]
    for batch in batches:
        if not low <= batch <= high:
            raise ConfigError(f"--batch {batch}: the latency curve has batch sizes from {low} to {high}")
    if nodes + 1 > curve.queries:
        raise ConfigError(f"the latency curve ends at {curve.queries} queries a row, {nodes} nodes need "
                          f"{nodes + 1}: measure further")


def _count(text: str, name: str) -> int:
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise DataError(f"{name}: {text!r} is no number from 1: {_SHAPE}")
    return found


def _time(value, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise DataError(f"{name}: {value!r} is no time above 0 in milliseconds")
    return float(value)
