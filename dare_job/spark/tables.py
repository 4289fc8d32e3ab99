"""Tables by path: a folder named ``o[1]`` is that folder, not a pattern; URLs go their own way."""

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


def escape_glob(path: Path | str) -> str:
    """The absolute path with the characters of Spark's patterns escaped."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", str(Path(path).absolute()))


def read_parquet(spark: SparkSession, *paths: AnyPath | str, columns: Collection[str] | None = None,
                 located: bool = False) -> DataFrame:
    """The Parquet files or folders of exactly these paths, as one table.

    columns  all that are needed, where that is known: only these are read from a URL
    located  ``_metadata`` is needed: file_name and row_index
    """
    if all(map(storage_paths.is_local, map(storage_paths.path, paths))):
        known = _schema(Path(paths[0]))
        reader = spark.read if known is None else spark.read.schema(known)
        return reader.parquet(*[escape_glob(path) for path in paths])
    from dare_job.spark import remote_tables

    return remote_tables.read_parquet(spark, [storage_paths.path(path) for path in paths], columns, located)


def write_parquet(table: DataFrame, folder: AnyPath, mode: str = "error") -> None:
    """Write a table as a folder of Parquet files, or with mode "append" add it to one."""
    if storage_paths.is_local(folder):
        table.write.mode(mode).parquet(str(folder))
        return
    from dare_job.spark import remote_tables

    remote_tables.write_parquet(table, folder)


def row_count(path: AnyPath) -> int:
    """Rows of a Parquet file, by its footer. Raises pa.ArrowException or OSError where that is damaged."""
    with storage_paths.arrow_source(path) as source:
        return pq.read_metadata(source).num_rows


def _schema(path: Path) -> StructType | None:
    """What Spark would find in the first file's footer by a job of its own; None: that is to be asked."""
    file = path if path.is_file() else min(path.glob("[!._]*.parquet"), default=None)
    try:
        found = pq.read_schema(file) if file and file.is_file() else None
    except (pa.ArrowException, OSError):
        return None  # Spark says what is wrong with it
    if found is None or not all(_is_plain(field.type) for field in found):
        return None
    written = (found.metadata or {}).get(_SPARKS_OWN)
    return StructType.fromJson(json.loads(written)) if written else from_arrow_schema(found)


_SPARKS_OWN = b"org.apache.spark.sql.parquet.row.metadata"
_LEAVES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_signed_integer,
           pa.types.is_float32, pa.types.is_float64)
_NESTED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)


def _is_plain(kind: pa.DataType) -> bool:
    """True for types that are one thing to Arrow and to Spark."""
    if any(is_leaf(kind) for is_leaf in _LEAVES):
        return True
    nested = any(is_nested(kind) for is_nested in _NESTED)
    return nested and all(_is_plain(kind.field(at).type) for at in range(kind.num_fields))
