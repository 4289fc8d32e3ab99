"""Parquet files in the shape of the contract tables, or close to it.

``interactions`` (user_id, item_id, timestamp in seconds or a timestamp type, optionally rating), ``users``
(user_id) and ``items`` (item_id, title), each a file ``NAME.parquet`` or a folder ``NAME`` or
``NAME.parquet``; the last two may be missing. Ids may be integers. Attributes come from a map or struct
column ``attributes``; where there is none, from all other columns of plain type.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from dare_job.data.readers.source import Source
from dare_job.data.readers.text import attributes
from dare_job.errors import DataError

_NEEDED = {"interactions": ("user_id", "item_id", "timestamp"), "users": ("user_id",),
           "items": ("item_id", "title")}
_NANOS = "spark.sql.legacy.parquet.nanosAsLong"


def table_path(folder: Path, name: str) -> Path | None:
    """Where a table lies in an input folder: ``NAME.parquet`` (file or folder) or a folder ``NAME``."""
    candidates = (folder / f"{name}.parquet", folder / name)
    return next((path for path in candidates if path.exists() and parquet_files(path)), None)


def parquet_files(path: Path) -> list[Path]:
    """The Parquet files of a table, without Spark's and our own hidden files."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*.parquet")
                  if file.is_file() and not file.name.startswith(("_", ".")))


def parquet_schema(path: Path) -> pa.Schema:
    """Schema from a file's footer. Raises DataError naming the file where it is damaged."""
    try:
        return pq.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {_first_line(error)}") from None


def read(folder: Path, spark: SparkSession) -> Source:
    """Raw tables of a folder (or of one file of interactions).

    Raises DataError naming the file and the column for a missing column or a damaged footer.
    """
    if folder.is_file():
        return Source(_interactions(folder, spark))
    paths = {name: table_path(folder, name) for name in _NEEDED}
    if paths["interactions"] is None:
        raise DataError(f"{folder} has no interactions.parquet (a file or a folder of Parquet files)")
    others = [_entities(paths[name], name, spark) if paths[name] else None for name in ("users", "items")]
    return Source(_interactions(paths["interactions"], spark), *others)


def explain_damage(path: Path, error: Exception) -> DataError:
    """What Spark's failure to read means for the user: the damaged file and column, found by reading all."""
    tables = [path] if path.is_file() else [table_path(path, name) for name in _NEEDED]
    for file in [file for table in tables if table for file in parquet_files(table)]:
        if file.suffix != ".parquet":
            continue
        reader = pq.ParquetFile(file)
        for name in reader.schema_arrow.names:
            for group in range(reader.num_row_groups):
                try:
                    reader.read_row_group(group, columns=[name])
                except (pa.ArrowException, OSError) as damage:
                    return DataError(f"{file}: column {name} is damaged in row group {group}: "
                                     f"{_first_line(damage)}")
    return DataError(f"{path} could not be read: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _table(path: Path, name: str, spark: SparkSession) -> DataFrame:
    files = parquet_files(path)
    for file in files:
        schema = parquet_schema(file)
        missing = [column for column in _NEEDED[name] if column not in schema.names]
        if missing:
            raise DataError(f"{file} has no column {', '.join(missing)} "
                            f"(columns found: {', '.join(schema.names)})")
    if any(field.type == pa.timestamp("ns", getattr(field.type, "tz", None)) for field in schema):
        spark.conf.set(_NANOS, "true")  # pandas writes nanoseconds, which Spark only takes as a number
    read = spark.read.parquet(*[str(file.absolute()) for file in files])
    fields = [F.col(column).cast("string") for column, kind in _plain(read)]
    return read.withColumns({
        "source": F.col("_metadata.file_name"), "line": F.col("_metadata.row_index") + 1,
        "raw": F.concat_ws(",", *fields), "problem": F.lit(None).cast("string")})


def _plain(table: DataFrame) -> list[tuple[str, DataType]]:
    nested = (ArrayType, MapType, StructType, BinaryType)
    return [(field.name, field.dataType) for field in table.schema if not isinstance(field.dataType, nested)]


def _interactions(path: Path, spark: SparkSession) -> DataFrame:
    table = _table(path, "interactions", spark)
    stamp = parquet_schema(parquet_files(path)[0]).field("timestamp").type
    if pa.types.is_timestamp(stamp) and stamp.unit == "ns":
        table = table.withColumn("timestamp", F.floor(F.col("timestamp") / F.lit(1_000_000_000)))
    if "rating" not in table.columns:
        table = table.withColumn("rating", F.lit(None).cast("float"))
    return table.withColumns({name: F.col(name).cast("string") for name in ("user_id", "item_id")})


def _entities(path: Path, name: str, spark: SparkSession) -> DataFrame:
    table = _table(path, name, spark)
    key = _NEEDED[name][0]
    known = {*_NEEDED[name], "source", "line", "raw", "problem"}
    return table.withColumns({
        key: F.col(key).cast("string"), "attributes": _attributes(table, known),
        **({"title": F.col("title").cast("string")} if name == "items" else {})})


def _attributes(table: DataFrame, known: set[str]) -> Column:
    if "attributes" not in table.columns:
        return attributes(**{name: F.col(name) for name, _ in _plain(table) if name not in known})
    kind = table.schema["attributes"].dataType
    if isinstance(kind, StructType):
        return attributes(**{name: F.col(f"attributes.`{name}`") for name in kind.names})
    if not isinstance(kind, MapType):
        shown = "text" if isinstance(kind, StringType) else kind.simpleString()
        raise DataError(f"column attributes must be a map or a struct of strings, not {shown}")
    return F.map_filter(F.col("attributes").cast("map<string,string>"), lambda name, value: value.isNotNull())
