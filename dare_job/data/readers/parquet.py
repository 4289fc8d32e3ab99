"""Parquet files in the shape of the contract tables, or close to it.

``interactions`` (user_id, item_id, timestamp in seconds or a timestamp type, optionally rating), ``users``
(user_id) and ``items`` (item_id, title), each a file ``NAME.parquet`` or a folder ``NAME`` or
``NAME.parquet``; the last two may be missing. Ids may be numbers, and the files of one folder may differ in
their types. Attributes come from a map or struct column ``attributes``; where there is none, from all other
columns of plain type.
"""

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StringType, StructType

from dare_job.data.readers.casts import FileGroup, Source, column_of, quoted, union_tables
from dare_job.data.readers.text import attribute_map
from dare_job.errors import DataError
from dare_job.spark.tables import read_parquet
from dare_job.storage import paths as storage_paths
from dare_job.storage.paths import AnyPath

NEEDED = {"interactions": ("user_id", "item_id", "timestamp"), "users": ("user_id",),
           "items": ("item_id", "title")}
_NANOS = "spark.sql.legacy.parquet.nanosAsLong"


def table_path(folder: AnyPath, name: str) -> AnyPath | None:
    """Path of a table in an input folder: ``NAME.parquet`` (file or folder) or a folder ``NAME``."""
    candidates = (folder / f"{name}.parquet", folder / name)
    return next((path for path in candidates if path.exists() and parquet_files(path)), None)


def parquet_files(path: AnyPath) -> list[AnyPath]:
    """The Parquet files of a table, without hidden files and folders, which hold what is not part of it."""
    return [path] if path.is_file() else storage_paths.visible_files(path, ".parquet")


def parquet_schema(path: AnyPath) -> pa.Schema:
    """Schema from a file's footer. Raises DataError with the file name if it is damaged."""
    try:
        with storage_paths.arrow_source(path) as source:
            return pq.read_schema(source)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {_first_line(error)}") from None


def read(folder: AnyPath, spark: SparkSession) -> Source:
    """Raw tables of a folder (or of one file of interactions).

    Raises DataError with file and column if a column is missing or a footer is damaged.
    """
    if folder.is_file():
        return Source(_interactions(folder, spark))
    paths = {name: table_path(folder, name) for name in NEEDED}
    if paths["interactions"] is None:
        raise DataError(f"{folder} has no interactions.parquet (a file or a folder of Parquet files)")
    others = [_entities(paths[name], name, spark) if paths[name] else None for name in ("users", "items")]
    return Source(_interactions(paths["interactions"], spark), *others)


def find_damage(path: AnyPath) -> DataError | None:
    """Find the damaged file and column after Spark failed, by reading all data; None if all is readable."""
    tables = [path] if path.is_file() else [table_path(path, name) for name in NEEDED]
    for file in [file for table in tables if table for file in parquet_files(table)]:
        if file.suffix != ".parquet":
            continue
        with storage_paths.arrow_source(file) as source:
            damage = _damage(file, pq.ParquetFile(source))
        if damage:
            return damage
    return None


def _damage(file: AnyPath, reader: pq.ParquetFile) -> DataError | None:
    for name in reader.schema_arrow.names:
        for group in range(reader.num_row_groups):
            try:
                reader.read_row_group(group, columns=[name])
            except (pa.ArrowException, OSError) as damage:
                return DataError(f"{file}: column {name} is damaged in row group {group}: "
                                 f"{_first_line(damage)}")
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _file_groups(path: AnyPath, name: str, spark: SparkSession) -> list[FileGroup]:
    groups: dict[tuple, list[AnyPath]] = {}
    schemas: dict[tuple, pa.Schema] = {}
    paths = parquet_files(path)
    for file, schema in zip(paths, storage_paths.map_paths(parquet_schema, paths), strict=True):
        check_columns(file, schema, NEEDED[name])
        if any(pa.types.is_timestamp(field.type) and field.type.unit == "ns" for field in schema):
            spark.conf.set(_NANOS, "true")  # Spark reads the nanoseconds of pandas only as integers
        key = tuple(sorted((field.name, str(field.type)) for field in schema))
        groups.setdefault(key, []).append(file)
        schemas[key] = schema
    return [FileGroup(read_parquet(spark, *files, located=True), schemas[key])
            for key, files in groups.items()]


def check_columns(file: AnyPath, schema: pa.Schema, needed: tuple[str, ...]) -> None:
    """Check the columns of a file. Raises DataError if one is missing or nested."""
    missing = [column for column in needed if column not in schema.names]
    if missing:
        raise DataError(f"{file} has no column {', '.join(missing)} "
                        f"(columns found: {', '.join(schema.names)})")
    for column in needed:
        if pa.types.is_nested(schema.field(column).type):
            raise DataError(f"{file}: column {column} must hold plain values, not "
                            f"{schema.field(column).type}")


def _interactions(path: AnyPath, spark: SparkSession) -> DataFrame:
    return union_tables([_event_table(part) for part in _file_groups(path, "interactions", spark)])


def _event_table(part: FileGroup) -> DataFrame:
    (user, user_problem), (item, item_problem) = part.text("user_id"), part.text("item_id")
    rating = F.col("rating") if "rating" in part.table.columns else F.lit(None).cast("float")
    return part.table.select(
        *part.marks(user_problem, item_problem), user.alias("user_id"), item.alias("item_id"),
        rating.alias("rating"), part.seconds().alias("timestamp"))


def _entities(path: AnyPath, name: str, spark: SparkSession) -> DataFrame:
    return union_tables([_entity_table(part, NEEDED[name]) for part in _file_groups(path, name, spark)])


def _entity_table(part: FileGroup, needed: tuple[str, ...]) -> DataFrame:
    columns = {name: _title(part) if name == "title" else part.text(name) for name in needed}
    return part.table.select(
        *part.marks(*[problem for _, problem in columns.values()]),
        *[column.alias(name) for name, (column, _) in columns.items()],
        _attributes(part, needed).alias("attributes"))


def _title(part: FileGroup) -> tuple[Column, Column]:
    title = F.col("title").cast("string")
    return title, F.when(~F.is_valid_utf8(title), F.lit("title is not UTF-8"))


def _attributes(part: FileGroup, needed: tuple[str, ...]) -> Column:
    table = part.table
    if "attributes" not in table.columns:
        return attribute_map(**{name: column_of(name) for name in part.plain() if name not in needed})
    kind = table.schema["attributes"].dataType
    if isinstance(kind, StructType):
        return attribute_map(**{name: F.col(f"attributes.{quoted(name)}") for name in kind.names})
    if not isinstance(kind, MapType):
        actual = "text" if isinstance(kind, StringType) else kind.simpleString()
        raise DataError(f"column attributes must be a map or a struct of strings, not {actual}")
    return F.map_filter(F.col("attributes").cast("map<string,string>"), lambda name, value: value.isNotNull())
