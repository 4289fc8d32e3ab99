"""Reads and writes Parquet tables by path. Paths are never patterns, and URLs use ``remote_tables``.

A local path is on this disk, also where Hadoop's ``fs.defaultFS`` names another file system.
"""

import json
import re
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dare_job.storage import paths as storage_paths
from dare_job.storage.paths import AnyPath


def disk_url(path: Path | str) -> str:
    """The absolute path as Hadoop reads it, with a scheme. Hadoop decodes no %20, so nothing is encoded."""
    return f"file://{Path(path).absolute()}"


def escape_glob(url: str) -> str:
    """A path or URL with the characters of Spark's glob patterns escaped."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", url)


def read_parquet(spark: SparkSession, *paths: AnyPath | str, columns: Collection[str] | None = None
                 ) -> DataFrame:
    """Read Parquet files or folders as one table.

    Parameters
    ----------
    columns
        The required columns, if known; from a URL only these are read.
    """
    if all(map(storage_paths.is_local, map(storage_paths.path, paths))):
        schema = _schema(Path(paths[0]))
        reader = spark.read if schema is None else spark.read.schema(schema)
        return reader.parquet(*[escape_glob(disk_url(path)) for path in paths])
    from dare_job.spark import remote_tables

    return remote_tables.read_parquet(spark, [storage_paths.path(path) for path in paths], columns)


def write_parquet(table: DataFrame, folder: AnyPath, mode: str = "error") -> None:
    """Write a table as a folder of Parquet files. The mode "append" adds to an existing folder."""
    if storage_paths.is_local(folder):
        table.write.mode(mode).parquet(disk_url(folder))
        return
    from dare_job.spark import remote_tables

    remote_tables.write_parquet(table, folder)


def row_count(path: AnyPath) -> int:
    """Number of rows in a Parquet file's footer.

    Raises
    ------
    pa.ArrowException, OSError
        The file is missing or damaged.
    """
    with storage_paths.arrow_source(path) as source:
        return pq.read_metadata(source).num_rows


def _schema(path: Path) -> StructType | None:
    """Schema from the first file's footer, which saves a Spark job; None if Spark must infer it."""
    file = path if path.is_file() else min(path.glob("[!._]*.parquet"), default=None)
    try:
        schema = pq.read_schema(file) if file and file.is_file() else None
    except (pa.ArrowException, OSError):
        return None  # Spark raises the error
    if schema is None or not all(_is_plain(field.type) for field in schema):
        return None
    spark_schema = (schema.metadata or {}).get(_SPARK_METADATA)
    return StructType.fromJson(json.loads(spark_schema)) if spark_schema else from_arrow_schema(schema)


_SPARK_METADATA = b"org.apache.spark.sql.parquet.row.metadata"
_LEAVES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_signed_integer,
           pa.types.is_float32, pa.types.is_float64)
_NESTED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Arrow and Spark interpret a type in the same way."""
    if any(is_leaf(kind) for is_leaf in _LEAVES):
        return True
    nested = any(is_nested(kind) for is_nested in _NESTED)
    return nested and all(_is_plain(kind.field(at).type) for at in range(kind.num_fields))
