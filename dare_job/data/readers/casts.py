"""Casts Parquet columns to the types of the input tables; ``Source`` holds a reader's unchecked tables."""

from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, FractionalType, MapType, StringType, StructType


@dataclass(frozen=True)
class FileGroup:
    """Files of a table with the same schema. Spark would cast files with other types."""

    table: DataFrame
    schema: pa.Schema

    def text(self, name: str) -> tuple[Column, Column]:
        """A column as text, and its problem or null. Floats with an integer value are written as integers."""
        column, kind = column_of(name), self.table.schema[name].dataType
        if isinstance(kind, StringType | BinaryType):
            return column.cast("string"), F.when(~F.is_valid_utf8(column.cast("string")),
                                                 F.lit(f"{name} is not UTF-8"))
        if not isinstance(kind, FractionalType) or getattr(kind, "scale", 1) == 0:
            return column.cast("string"), F.lit(None).cast("string")
        value = F.when(~F.isnan(column.cast("double")), column)  # pandas stores missing numbers as NaN
        whole = value.try_cast("bigint")
        same = F.coalesce(whole.cast("double") == value.cast("double"), F.lit(False))
        fractional = value.isNotNull() & ~same
        return whole.cast("string"), F.when(fractional, F.lit(f"{name} is not a whole number"))

    def seconds(self) -> Column:
        """The timestamp: in seconds if its type has a unit, else unchanged."""
        kind = self.schema.field("timestamp").type
        if not pa.types.is_timestamp(kind):
            return F.col("timestamp")
        if kind.unit == "ns":
            return F.floor(F.col("timestamp") / F.lit(1_000_000_000))
        return F.unix_timestamp("timestamp")

    def marks(self, *problems: Column) -> list[Column]:
        """Columns source, line, raw and problem: origin of a row and its first problem."""
        raw = F.concat_ws(",", *[column_of(name).cast("string") for name in self.plain()])
        return [F.col("_metadata.file_name").alias("source"),
                (F.col("_metadata.row_index") + 1).alias("line"),
                F.make_valid_utf8(raw).alias("raw"), F.coalesce(*problems).alias("problem")]

    def plain(self) -> list[str]:
        """Names of the columns with a scalar type."""
        nested = (ArrayType, MapType, StructType, BinaryType)
        return [field.name for field in self.table.schema if not isinstance(field.dataType, nested)]


def column_of(name: str) -> Column:
    """The column with exactly this name, which may contain dots and back-quotes."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def union_tables(tables: list[DataFrame]) -> DataFrame:
    """Union of tables. A column with differing types becomes text."""
    kinds = {name: {table.schema[name].dataType for table in tables} for name in tables[0].columns}
    mixed = [name for name, types in kinds.items() if len(types) > 1]
    aligned = [table.withColumns({name: _as_text(table, name) for name in mixed}) for table in tables]
    return reduce(DataFrame.unionByName, aligned)


def _as_text(table: DataFrame, name: str) -> Column:
    text = F.col(name).cast("string")
    if name == "timestamp" and isinstance(table.schema[name].dataType, FractionalType):
        return F.coalesce(F.col(name).try_cast("bigint").cast("string"), text)  # not 1.6E9
    return text


@dataclass(frozen=True)
class Source:
    """Raw tables of one input.

    Each table has its contract columns (as text if the file has text), ``source`` (file name), ``line``
    (1-based), ``raw`` (the row as text) and ``problem`` (why the row could not be parsed, or null).
    """

    interactions: DataFrame
    users: DataFrame | None = None
    items: DataFrame | None = None
    rating_range: tuple[float, float] | None = None  # None: any finite number
