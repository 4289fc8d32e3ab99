"""What the gate found: one finding of each check and entity type.

The table of rows that a check counted, so that somebody can look at them.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

CHECKS = {  # in the order of reports; each with its words in a message and the setting of its limit
    "errors": ("rows with a prompt failed", "limits.max_error_share"),
    "errors_again": ("rows failed as the night before", "limits.max_error_share"),
    "empty": ("texts are empty", "gates.max_empty_share"),
    "short": ("texts are too short", "gates.max_short_share"),
    "cut_off": ("texts are cut off", "gates.max_cut_off_share"),
    "loop": ("texts end in a loop", "gates.max_loop_share"),
    "unprintable": ("texts hold unprintable characters", "gates.max_unprintable_share"),
    "relaxed": ("tokens are relaxed", "gates.max_relaxed_share"),
    "length_ratio": ("median length against the same entities' texts before", "gates.max_length_ratio"),
    "length_distance": ("distance of the lengths from those before", "gates.max_length_distance"),
}

OF_ERRORS = ("errors", "errors_again")

OF_LENGTHS = ("length_ratio", "length_distance")

FIRST = 5  # ids kept for the message


@dataclass(frozen=True)
class Finding:
    """One check of one entity type.

    rows     counted by the check; of: looked at (relaxed: rows and tokens looked at)
    value    what is held against the limit: a share, for lengths a ratio or distance; None: not looked at
    limit    None: switched off
    failed   the gate stays shut
    first    ids of the first rows counted
    why      why the check was not made, or a value over its limit let through
    """

    rows: int
    of: int
    value: float | None
    limit: float | None
    failed: bool = False
    first: list[str] = field(default_factory=list)
    why: str | None = None


def records(found: dict[str, dict[str, Finding]]) -> dict[str, dict[str, dict]]:
    """Findings by entity type and check, as JSON values."""
    return {entity: {check: asdict(finding) for check, finding in checks.items()}
            for entity, checks in found.items()}


def worst(found: dict[str, dict[str, dict]]) -> dict[str, float | None]:
    """By check the value of the entity type that has more of it (a ratio: farther from 1), of records.

    None where the check looked at nothing.
    """
    result = {}
    for check in CHECKS:
        values = [checks[check]["value"] for checks in found.values() if check in checks]
        values = [value for value in values if value is not None]
        key = _distance_from_one if check == "length_ratio" else None
        result[check] = round(max(values, key=key), 6) if values else None
    return result


def _distance_from_one(ratio: float) -> float:
    return max(ratio, 1 / ratio)

NAME = "failing_rows.parquet"

MOST = 100_000  # rows listed of each check and entity type

_START = 200  # characters of a text

_GROUP = 20_000  # rows held in memory

ROWS = pa.schema([
    pa.field("entity", pa.string(), nullable=False),
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("check", pa.string(), nullable=False),
    pa.field("value", pa.float64()),  # what the check looked at: docs/how-to/quality-gates.md; null: an error
    pa.field("text", pa.string()),  # its first 200 characters, or the error
])


class Listing:
    """Writes ``folder/failing_rows.parquet`` as rows come; MOST of each check and entity type are kept."""

    def __init__(self, file: pq.ParquetWriter):
        self._file = file
        self._waiting: list[pa.RecordBatch] = []
        self._listed: Counter[tuple[str, str]] = Counter()

    @classmethod
    @contextmanager
    def below(cls, folder: AnyPath) -> Iterator["Listing"]:
        """A listing that is written, whole, when the block ends."""
        with (paths.arrow_sink(folder / NAME) as sink,
              pq.ParquetWriter(sink, ROWS, compression="zstd") as file):
            listing = cls(file)
            yield listing
            listing._write()

    def add(self, entity: str, check: str, ids: pa.Array, values: np.ndarray | None, texts: pa.Array) -> None:
        """Take N rows: ids, values (None: they have none) and texts."""
        room = min(MOST - self._listed[entity, check], len(ids))
        if room <= 0:
            return
        self._listed[entity, check] += room
        values = pa.nulls(room, pa.float64()) if values is None else pa.array(values[:room].astype(float))
        start = pc.utf8_slice_codeunits(texts.slice(0, room), 0, _START)
        named = [pa.repeat(entity, room), ids.slice(0, room), pa.repeat(check, room), values, start]
        self._waiting.append(pa.RecordBatch.from_arrays(named, schema=ROWS))
        if sum(batch.num_rows for batch in self._waiting) >= _GROUP:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._file.write_table(pa.Table.from_batches(self._waiting))
            self._waiting.clear()
