"""Raw rows of Parquet files. See ``dare_job/data/readers/parquet.py``."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.data.readers import parquet as layout
from dare_job.data.without_spark import values
from dare_job.data.without_spark.source import Entities, InputTables
from dare_job.errors import DataError
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_BATCH = 1 << 17


def read(folder: AnyPath) -> InputTables:
    """Raw tables of a folder, or of one file of interactions. Raises DataError like the run's reader."""
    if folder.is_file():
        return InputTables(lambda: _interactions(folder))
    found = {name: layout.table_path(folder, name) for name in layout.NEEDED}
    if found["interactions"] is None:
        raise DataError(f"{folder} has no interactions.parquet (a file or a folder of Parquet files)")
    return InputTables(lambda: _interactions(found["interactions"]), *[
        (lambda name=name: _entities(found[name], name)) if found[name] else None
        for name in ("users", "items")])


def _interactions(path: AnyPath) -> Iterator[pa.RecordBatch]:
    needed = layout.NEEDED["interactions"]
    for batch in _batches(path, "interactions", [*needed, "rating"]):
        (users, bad_users), (items, bad_items) = (_ids(batch[name], name) for name in needed[:2])
        rating = batch["rating"] if "rating" in batch.schema.names else pa.nulls(len(batch), pa.float32())
        yield pa.RecordBatch.from_arrays(
            [users, items, rating, batch["timestamp"], pc.or_(bad_users, bad_items)],
            names=["user_id", "item_id", "rating", "timestamp", "broken"])


def _entities(path: AnyPath, name: str) -> Iterator[Entities]:
    key = layout.NEEDED[name][0]
    for batch in _batches(path, name):
        (ids, broken), titles = _ids(batch[key], key), None
        if name == "items":
            titles, invalid = _title(batch["title"])
            broken = pc.or_(broken, invalid)
        used, attributes = _attributes(batch.schema, layout.NEEDED[name])
        yield Entities(ids, titles, broken, _readable(batch.select(used)), attributes)


def _batches(path: AnyPath, name: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of the files of a table, in the order of file names."""
    for file in sorted(layout.parquet_files(path), key=lambda file: file.name):
        schema = layout.parquet_schema(file)
        layout.check_columns(file, schema, layout.NEEDED[name])
        chosen = columns and [column for column in columns if column in schema.names]
        try:
            with paths.arrow_source(file) as source:
                for batch in pq.ParquetFile(source).iter_batches(_BATCH, columns=chosen):
                    yield _without_dictionaries(batch)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file} is damaged: {str(error).splitlines()[0]}") from error


def _without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
               for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _is_text(kind: pa.DataType) -> bool:
    return (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind) or pa.types.is_string_view(kind))


def _ids(column: pa.Array, name: str) -> tuple[pa.Array, pa.Array]:
    """Ids as text, and where they are no valid id. Floats with a whole value are written as integers."""
    kind = column.type
    if _is_text(kind):
        return values.utf8(column)
    if pa.types.is_floating(kind) or (pa.types.is_decimal(kind) and kind.scale):
        number = pc.if_else(pc.is_nan(values.doubles(column)), pa.scalar(None, pa.float64()),
                            values.doubles(column))
        whole = pc.and_(pc.equal(number, pc.trunc(number)), pc.less(pc.abs(number), 2.0**63))
        fractional = pc.and_(pc.is_valid(number), pc.invert(pc.fill_null(whole, False)))
        kept = pc.if_else(whole, number, pa.scalar(None, pa.float64()))
        return kept.cast(pa.int64()).cast(pa.string()), fractional
    if pa.types.is_timestamp(kind):
        raise DataError(f"column {name} is {kind}: without Spark only numbers and text are read as ids")
    return column.cast(pa.string()), pa.array(np.zeros(len(column), bool))


def _title(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    if _is_text(column.type):
        return values.utf8(column)
    return (pa.array([None if value is None else values.as_text(value) for value in column.to_pylist()],
                     pa.string()), pa.array(np.zeros(len(column), bool)))


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Text columns as bytes, since text of Parquet files may be invalid; float32 stays in its own type."""
    columns = [column.cast(pa.binary()) if _is_text(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _attributes(schema: pa.Schema, needed: tuple[str, ...]):
    """The columns of attributes, and a function from a row of them to its attributes."""
    if "attributes" not in schema.names:
        names = [field.name for field in schema if field.name not in needed
                 and not pa.types.is_nested(field.type) and not _is_bytes(field.type)]
        kinds = {name: schema.field(name).type for name in names}
        return names, lambda row: values.attribute_map(
            (name, _typed(row[name], kinds[name])) for name in names)
    kind = schema.field("attributes").type
    if pa.types.is_struct(kind):
        kinds = {field.name: field.type for field in kind}
        return ["attributes"], lambda row: values.attribute_map(
            (name, _typed(value, kinds[name])) for name, value in (row["attributes"] or {}).items())
    if not pa.types.is_map(kind):
        actual = "text" if _is_text(kind) else str(kind)
        raise DataError(f"column attributes must be a map or a struct of strings, not {actual}")
    return ["attributes"], lambda row: {
        values.as_text(name): values.as_text(_typed(value, kind.item_type))
        for name, value in row["attributes"] or () if value is not None}


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _typed(value, kind: pa.DataType):
    return np.float32(value) if value is not None and pa.types.is_float32(kind) else value
