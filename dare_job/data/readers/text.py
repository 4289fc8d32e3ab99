"""Lines of text files as Spark columns, each with its file and line number."""

import csv
import re

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dare_job.spark.tables import escape_glob
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_ONE_SPLIT_BYTES = 4 << 20  # Spark's spark.sql.files.openCostInBytes: smaller files are never split


def lines(spark: SparkSession, path: AnyPath) -> DataFrame:
    """Columns ``raw``, ``source`` and ``line`` of a text file, gzipped or not.

    A line that is not UTF-8 is read as Latin-1 (older MovieLens files). Blank lines are skipped but count in
    the line numbers.
    """
    if paths.is_local(path):
        read = spark.read.text(escape_glob(path)).select(
            "value", F.col("_metadata.file_block_start").alias("_start"),
            F.monotonically_increasing_id().alias("_row"))
        line = (F.col("_row") + 1 if _is_one_split(path) else _line_numbers(read)).cast("long")
    else:
        from dare_job.spark import remote_tables

        read = remote_tables.read_lines(spark, path).withColumn("value", F.col("value").cast("string"))
        line = F.col("line")
    latin = F.decode(F.col("value").cast("binary"), "ISO-8859-1")
    text = F.when(F.is_valid_utf8("value"), F.col("value")).otherwise(latin)
    unmarked = F.regexp_replace(text, "^\ufeff", "")
    named = read.select(unmarked.alias("raw"), F.lit(path.name).alias("source"), line.alias("line"))
    return named.where(F.trim("raw") != "")


def _is_one_split(path: AnyPath) -> bool:
    return path.suffix == ".gz" or path.stat().st_size < _ONE_SPLIT_BYTES


def _line_numbers(read: DataFrame) -> Column:
    """Line numbers of a file that Spark reads in several splits. Takes one counting pass over the file."""
    splits = read.groupBy("_start").agg(F.count("*").alias("rows"), F.min("_row").alias("first"))
    before, shifts = 0, []
    for split in sorted(splits.collect()):
        shifts += [F.lit(split["_start"]), F.lit(before - split["first"] + 1)]
        before += split["rows"]
    return F.col("_row") + F.create_map(*shifts)[F.col("_start")]


def split_fields(table: DataFrame, separator: str, names: list[str]) -> DataFrame:
    """Split ``raw`` into named fields; ``problem`` is set if their number is wrong. Ignores quotes."""
    parts = F.split("raw", re.escape(separator), -1)
    expected = F.lit(f"expected {len(names)} fields between '{separator}', found ")
    problem = F.when(F.size(parts) != len(names), F.concat(expected, F.size(parts)))
    fields = [F.when(F.size(parts) == len(names), F.trim(F.get(parts, place))).alias(name)
              for place, name in enumerate(names)]
    return table.select("source", "line", "raw", problem.alias("problem"), *fields)


def split_csv(table: DataFrame, needed: list[str]) -> tuple[DataFrame, list[str]]:
    """Parse a csv with a header line. Returns the table and the names of missing columns."""
    first = table.where("line = 1").select("raw").first()
    header = next(csv.reader([first["raw"]]), []) if first else []
    names = [name.strip() for name in header]
    missing = [name for name in needed if name not in names]
    if missing:
        return table, missing
    schema = ", ".join(f"`{name}` string" for name in [*names, "_bad"])
    options = {"columnNameOfCorruptRecord": "_bad", "escape": '"', "mode": "PERMISSIVE"}
    read = table.where("line > 1").withColumn("_csv", F.from_csv("raw", schema, options))
    problem = F.when(F.col("_csv._bad").isNotNull(), F.lit(f"expected {len(names)} comma separated fields"))
    fields = [F.trim(F.col(f"_csv.`{name}`")).alias(name) for name in needed]
    return read.select("source", "line", "raw", problem.alias("problem"), *fields), []


def attribute_map(**columns: Column) -> Column:
    """map<string,string> of the columns that are neither null nor empty, in argument order."""
    if not columns:
        return F.map_from_entries(F.array().cast("array<struct<key:string,value:string>>"))
    pairs = [F.struct(F.lit(name).alias("key"), F.make_valid_utf8(column.cast("string")).alias("value"))
             for name, column in columns.items()]
    kept = F.filter(F.array(*pairs), lambda pair: pair["value"].isNotNull() & (F.trim(pair["value"]) != ""))
    return F.map_from_entries(kept)
