"""Casts Parquet columns to the types of the input tables; ``Source`` holds a reader's unchecked tables."""

from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, FractionalType, MapType, StringType, StructType


@dataclass(frozen=True)
class FileGroup:
    """The files of a table that have one schema: Spark would force one file's types on all of them."""

    table: DataFrame
    schema: pa.Schema

    def text(self, name: str) -> tuple[Column, Column]:
        """A column as text, and what is wrong with it. A whole number stored as a float is a whole number."""
        column, kind = column_of(name), self.table.schema[name].dataType
        if isinstance(kind, StringType | BinaryType):
            return column.cast("string"), F.when(~F.is_valid_utf8(column.cast("string")),
                                                 F.lit(f"{name} is not UTF-8"))
        if not isinstance(kind, FractionalType) or getattr(kind, "scale", 1) == 0:
            return column.cast("string"), F.lit(None).cast("string")
        value = F.when(~F.isnan(column.cast("double")), column)  # pandas marks a missing number so
        whole = value.try_cast("bigint")
        odd = value.isNotNull() & ~F.coalesce(whole.cast("double") == value.cast("double"), F.lit(False))
        return whole.cast("string"), F.when(odd, F.lit(f"{name} is not a whole number"))

    def seconds(self) -> Column:
        """The timestamp in seconds where its type tells its unit, else as it is."""
        kind = self.schema.field("timestamp").type
        if not pa.types.is_timestamp(kind):
            return F.col("timestamp")
        if kind.unit == "ns":
            return F.floor(F.col("timestamp") / F.lit(1_000_000_000))
        return F.unix_timestamp("timestamp")

    def marks(self, *problems: Column) -> list[Column]:
        """Where a row is from, and the first thing that is wrong with it."""
        raw = F.concat_ws(",", *[column_of(name).cast("string") for name in self.plain()])
        return [F.col("_metadata.file_name").alias("source"),
                (F.col("_metadata.row_index") + 1).alias("line"),
                F.make_valid_utf8(raw).alias("raw"), F.coalesce(*problems).alias("problem")]

    def plain(self) -> list[str]:
        """Names of the columns with one value a row."""
        nested = (ArrayType, MapType, StructType, BinaryType)
        return [field.name for field in self.table.schema if not isinstance(field.dataType, nested)]


def column_of(name: str) -> Column:
    """The column of exactly this name, with its dots and back-quotes."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def union_tables(tables: list[DataFrame]) -> DataFrame:
    """The parts as one table; a column whose type differs between them becomes text."""
    kinds = {name: {table.schema[name].dataType for table in tables} for name in tables[0].columns}
    mixed = [name for name, found in kinds.items() if len(found) > 1]
    alike = [table.withColumns({name: _as_text(table, name) for name in mixed}) for table in tables]
    return reduce(DataFrame.unionByName, alike)


def _as_text(table: DataFrame, name: str) -> Column:
    text = F.col(name).cast("string")
    if name == "timestamp" and isinstance(table.schema[name].dataType, FractionalType):
        return F.coalesce(F.col(name).try_cast("bigint").cast("string"), text)  # not 1.6E9
    return text


@dataclass(frozen=True)
class Source:
    """Raw tables of one input. Each has its contract columns, as text where the file has text, and

    ``source`` (file name), ``line`` (1-based), ``raw`` (the row as text) and ``problem`` (null, or why the
    row could not be taken apart).
    """

    interactions: DataFrame
    users: DataFrame | None = None
    items: DataFrame | None = None
    rating_range: tuple[float, float] | None = None  # None: any finite number
