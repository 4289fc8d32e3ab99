"""Reads and writes tables at URLs in Spark's Python workers, through ``dare_job.storage.paths``.

This needs no Hadoop connector and no separate credentials. Splits consist of whole files, or row groups of
large files. Callers must name the columns, as Spark cannot push a projection down to Python.
"""

import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from dare_job.errors import DataError
from dare_job.spark import session
from dare_job.storage import paths as storage_paths
from dare_job.storage.parquet_writer import parquet_writer
from dare_job.storage.paths import AnyPath

_ROWS = 2000
_WRITTEN = pa.schema([("rows", pa.int64())])
Batches = Iterable[pa.RecordBatch]
_Piece = tuple[str, range | None]  # a file and some of its row groups; None: all


def read_parquet(spark: SparkSession, paths: Sequence[AnyPath], columns: Collection[str] | None = None
                 ) -> DataFrame:
    """Read Parquet files or folders at URLs as one table with the types of the first file.

    Parameters
    ----------
    columns
        Columns to read, if the table has them; None: all.

    Raises
    ------
    DataError
        There is no file, or a file cannot be read.
    """
    files = [file for part in storage_paths.map_paths(_sized, paths) for file in part]
    if not files:
        raise DataError(f"{', '.join(map(str, paths))}: no Parquet files found")
    schema = to_arrow_schema(from_arrow_schema(_plain(_schema(files[0][0], columns))), timezone="UTC")
    pieces = session.divide([piece for file, size in files for piece in _pieces(file, size)], spark)

    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                for piece in pieces[number]:
                    yield from _rows(piece, schema)

    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(read, from_arrow_schema(schema))


def _sized(path: AnyPath) -> list[tuple[AnyPath, int]]:
    if path.suffix == ".parquet" and path.is_file():
        return [(path, path.fs.info(path.path)["size"])]
    sizes = storage_paths.listing(path)
    return [(file, sizes[file.path.removeprefix(path.path).lstrip("/")]["size"])
            for file in storage_paths.visible_files(path, ".parquet")]


def _schema(file: AnyPath, columns: Collection[str] | None) -> pa.Schema:
    try:
        with file.open("rb") as source:
            schema = pq.read_schema(source)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    return pa.schema([field for field in schema if columns is None or field.name in columns])


def _plain(schema: pa.Schema) -> pa.Schema:
    """Replace types that Spark lacks: nanoseconds and unsigned by integers, dictionaries by values."""
    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            return plain(kind.value_type)
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            return pa.int64()
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(plain(kind.value_type))
        return {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
                pa.uint64(): pa.decimal128(20), pa.float16(): pa.float32()}.get(kind, kind)

    return pa.schema([field.with_type(plain(field.type)) for field in schema])


def _pieces(file: AnyPath, size: int) -> list[tuple[_Piece, int]]:
    """Pieces of a file and their bytes: the whole file, or each row group of a large one."""
    groups = _row_groups(file) if size >= session.TASK_BYTES else [None]
    return [((str(file), group), size // len(groups)) for group in groups]


def _row_groups(file: AnyPath) -> list[range | None]:
    with file.open("rb") as source:
        return [range(group, group + 1) for group in range(pq.read_metadata(source).num_row_groups)] or [None]


def _rows(piece: _Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a piece in a Spark task, with the types of the table. Columns that the file lacks are null."""
    file, groups = piece
    with storage_paths.path(file).open("rb") as source:
        table = pq.ParquetFile(source, pre_buffer=True)
        present = [name for name in schema.names if name in table.schema_arrow.names]
        for batch in table.iter_batches(_ROWS, row_groups=list(groups or range(table.num_row_groups)),
                                        columns=present):
            columns = [_cast(batch[name], kind) if name in present else pa.nulls(len(batch), kind)
                       for name, kind in zip(schema.names, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, names=schema.names)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(column.type) and pa.types.is_integer(kind):
        return column.view(pa.int64()) if column.type.unit == "ns" else column.cast(kind)
    return column if column.type == kind else column.cast(kind)


def write_parquet(table: DataFrame, folder: AnyPath) -> None:
    """Add a table to a folder at a URL: a new file per partition, or an empty file if it has no rows."""
    schema = to_arrow_schema(table.schema, timezone="UTC")
    target, run = str(folder), secrets.token_hex(4)

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        path = storage_paths.path(target) / f"part-{TaskContext.get().partitionId():05d}-{run}.parquet"
        rows = 0
        with parquet_writer(path, schema) as add:
            for batch in batches:
                add(batch)
                rows += len(batch)
        yield pa.RecordBatch.from_pylist([{"rows": rows}], schema=_WRITTEN)

    written = sum(row.rows for row in table.mapInArrow(write, "rows long").collect())
    if not written:
        with storage_paths.arrow_sink(folder / f"part-none-{run}.parquet") as sink:
            pq.write_table(schema.empty_table(), sink)
