"""Parquet files: which rows belong to the entities that are erased, and a file without these rows.

A row belongs to the entities that its columns of ids name: ``user_id``, ``item_id``, and ``entity_id`` with
the entity type of the column ``entity``, or else of the file's place. A rejected input row belongs to every
entity: its id may be escaped, written as bytes, cut off after 200 characters, or in the name of a folder.
"""

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.publish.erase.subjects import Subjects
from dare_job.schemas import ENTITIES
from dare_job.storage import paths
from dare_job.tables import chunk_files

ID_COLUMNS = ("entity_id", "text_of", *(f"{entity}_id" for entity in ENTITIES))
MAGIC = b"PAR1"  # the first bytes of a Parquet file
_TOTALS = b"dare_job.totals"  # of ``chunk_files``
_REJECT_COLUMNS = ("source", "reason", "raw")  # of REJECTS, without a number
BATCH = 1 << 16  # rows that are read at once
_PLACE = re.compile(r"(?:entity=|labels-)(user|item)\b")


def is_table(path: Path) -> bool:
    """Whether a file begins as Parquet does, whatever its name."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def entity_of(place: str, manifest: dict | None = None) -> str | None:
    """Entity type of a file's column ``entity_id``, from its path or the manifest beside it, or None."""
    named = _PLACE.findall(place)
    return named[-1] if named else (manifest or {}).get("entity")


def owned(rows: pa.RecordBatch | pa.Table, entity: str | None, subjects: Subjects) -> pa.Array:
    """Which rows (n,) belong to the entities. ``entity``: as ``entity_of``; None: either type."""
    if _are_rejects(rows.schema.names):
        return pa.repeat(True, rows.num_rows)
    masks = [mask for _, _, mask in _named(rows, entity, subjects)]
    if not masks:
        return pa.repeat(False, rows.num_rows)
    return pc.fill_null(reduce(pc.or_kleene, masks), False)


def owners(rows: pa.RecordBatch, entity: str | None, subjects: Subjects) -> set[str]:
    """Names of the entities that have rows, such as ``user:ID``. ``entity``: as for ``owned``."""
    return {f"{kind}:{name}" for kind, column, mask in _named(rows, entity, subjects)
            for name in column.filter(mask).unique().to_pylist()}


def _named(rows: pa.RecordBatch | pa.Table, entity: str | None, subjects: Subjects
           ) -> Iterator[tuple[str, pa.Array, pa.Array]]:
    """Entity type and values of each column of ids, and which of them (n,) are ids of the entities."""
    names = rows.schema.names
    for kind in ENTITIES:
        ids = pa.array(sorted(subjects.ids[kind]), pa.string())
        if f"{kind}_id" in names:
            column = rows[f"{kind}_id"].cast(pa.string())
            yield kind, column, pc.is_in(column, value_set=ids)
        if "text_of" in names and entity in (None, kind):  # of a copy: the row whose text it shares
            column = rows["text_of"].cast(pa.string())
            yield kind, column, pc.is_in(column, value_set=ids)
        if "entity_id" in names and entity in (None, kind):
            column = rows["entity_id"].cast(pa.string())
            mask = pc.is_in(column, value_set=ids)
            yield kind, column, pc.and_(mask, pc.equal(rows["entity"], kind)) if "entity" in names else mask


def batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a file. Memory does not grow with it."""
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(BATCH, columns=columns)


def id_columns(schema: pa.Schema) -> list[str]:
    """The columns of a table by which ``owned`` decides; none: no row can belong to an entity."""
    names = schema.names
    if _are_rejects(names):
        return list(_REJECT_COLUMNS)
    typed = ["entity"] if "entity" in names and "entity_id" in names else []
    return [name for name in names if name in ID_COLUMNS] + typed


def _are_rejects(names: Sequence[str]) -> bool:
    return set(names) >= set(_REJECT_COLUMNS)


def has_owned(path: Path, entity: str | None, subjects: Subjects) -> bool:
    """Whether a file has rows of the entities. Reads only the ids."""
    columns = id_columns(pq.read_schema(path))
    return bool(columns) and any(pc.any(owned(batch, entity, subjects)).as_py()
                                 for batch in batches(path, columns))


def rewrite(path: Path, target: Path, entity: str | None, subjects: Subjects) -> pa.Table:
    """Write a file without the rows of the entities; returns these rows.

    The target, which may be the file itself, is replaced atomically. Schema, metadata, compression and the
    size of row groups stay the same. Totals in the footer of generated texts count the remaining rows.
    """
    if _TOTALS in (pq.read_schema(path).metadata or {}):
        table, records = pq.read_table(path, partitioning=None), chunk_files.read_records(path)
        mask = owned(table, entity, subjects)
        busy_s = records.pop("totals")["busy_s"]
        chunk_files.write(target, table.filter(pc.invert(mask)), busy_s, **records)
        return table.filter(mask)
    removed = []
    with paths.atomic_writer(target, f".{target.name}.erasing.partial") as sink:
        _copy(path, sink, entity, subjects, removed)
        target.with_name(f".{target.name}.crc").unlink(missing_ok=True)  # Spark's checksum of the old file
    return pa.concat_tables(removed)


def _copy(path: Path, sink, entity: str | None, subjects: Subjects, removed: list[pa.Table]) -> None:
    with pq.ParquetFile(path) as file:
        groups, schema = file.metadata.num_row_groups, file.schema_arrow
        first = file.metadata.row_group(0) if groups else None
        size = max(1, first.num_rows) if first else BATCH
        codec = first.column(0).compression if first and first.num_columns else "ZSTD"
        rest = schema.empty_table()
        removed.append(rest)
        codec = "NONE" if codec == "UNCOMPRESSED" else codec
        with pq.ParquetWriter(sink, schema, compression=codec) as writer:
            for batch in file.iter_batches(min(size, BATCH)):
                mask = owned(batch, entity, subjects)
                removed.append(pa.Table.from_batches([batch.filter(mask)], schema))
                kept = pa.Table.from_batches([batch.filter(pc.invert(mask))], schema)
                rest = pa.concat_tables([rest, kept])
                while len(rest) >= size:
                    writer.write_table(rest.slice(0, size), row_group_size=size)
                    rest = rest.slice(size)
            writer.write_table(rest, row_group_size=size)
