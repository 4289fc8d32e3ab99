"""Writes a Spark table of KNOWLEDGE as Parquet files with exactly that Arrow schema, and ``parsed`` if asked.

Spark's own writer drops nullability and the schema version; here each partition writes one file by
pyarrow, named by the partition's number, so that a second attempt of a task replaces the first one's.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from dare_job.schemas import KNOWLEDGE
from dare_job.storage.paths import AnyPath
from dare_job.tables import chunk_files, parsed

_STATS = pa.schema([("file", pa.string()), ("rows", pa.int64()), ("sha256", pa.string()),
                    ("repeated", pa.string())])


@dataclass(frozen=True)
class Part:
    """One written file; ``repeated`` is an id that it contains twice, or None."""

    file: str
    rows: int
    sha256: str
    repeated: str | None


def write_parts(table, folder: AnyPath, prefix: str, partitions: int = 1, token_s: float = 0.0,
                parsed_type: pa.DataType | None = None) -> list[Part]:
    """Write a DataFrame with the columns of KNOWLEDGE as ``folder/prefix-<n>.parquet``, sorted by id.

    All rows of an id are in one file, so ``Part.repeated`` finds every id that occurs twice. Partitions
    without rows write no file; a table without rows becomes one file without rows.

    Parameters
    ----------
    token_s
        Decoding seconds per token, for the decoding time in the files' totals.
    parsed_type
        Type of a further column ``parsed``, the values of the texts (``tables.parsed``). None: no column.
    """
    columns = [table[name] for name in KNOWLEDGE.names]
    parts = table.select(columns).repartition(partitions, "entity_id").sortWithinPartitions("entity_id")
    folder = folder.resolve()

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        filled = [batch for batch in batches if batch.num_rows]
        if filled:
            path = folder / f"{prefix}-{TaskContext.get().partitionId():05d}.parquet"
            rows = pa.Table.from_batches(filled).cast(KNOWLEDGE)
            part = _write(path, _with_values(rows, parsed_type), token_s)
            yield pa.RecordBatch.from_pylist([asdict(part)], _STATS)

    rows = parts.mapInArrow(write, from_arrow_schema(_STATS)).collect()
    if not rows:
        empty = _with_values(KNOWLEDGE.empty_table(), parsed_type)
        return [_write(folder / f"{prefix}-00000.parquet", empty)]
    return sorted((Part(*row) for row in rows), key=lambda part: part.file)


def _with_values(table: pa.Table, parsed_type: pa.DataType | None) -> pa.Table:
    if parsed_type is None:
        return table
    return table.append_column("parsed", parsed.parse(table["knowledge"].to_pylist(), parsed_type))


def _write(path: AnyPath, table: pa.Table, token_s: float = 0.0) -> Part:
    chunk_files.write(path, table, token_s * chunk_files.totals_of(table).tokens)
    with path.open("rb") as file:
        return Part(path.name, len(table), hashlib.file_digest(file, "sha256").hexdigest(), _repeated(table))


def _repeated(table: pa.Table) -> str | None:
    ids = table["entity_id"].combine_chunks()
    if len(ids) < 2:
        return None
    equals_previous = pa.compute.equal(ids[1:], ids[:-1])
    position = pa.compute.index(equals_previous, True).as_py()
    return ids[position].as_py() if position >= 0 else None
