"""The table of rows that a check counted, so that somebody can look at them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job import files
from dare_job.files import AnyPath

NAME = "failing_rows.parquet"
MOST = 100_000  # rows listed of each check and entity type
_START = 200  # characters of a text
_GROUP = 20_000  # rows held in memory

ROWS = pa.schema([
    pa.field("entity", pa.string(), nullable=False),
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("check", pa.string(), nullable=False),
    pa.field("value", pa.float64()),  # what the check looked at: docs/quality-gates.md; null: an error
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
        with files.sink(folder / NAME) as sink, pq.ParquetWriter(sink, ROWS, compression="zstd") as file:
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
