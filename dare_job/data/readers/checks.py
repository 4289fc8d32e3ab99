"""Validates input rows and writes invalid rows to the table of rejects."""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType, TimestampNTZType, TimestampType

from dare_job.data.readers.casts import Source
from dare_job.errors import DataError
from dare_job.schemas import INTERACTIONS, ITEMS, REJECTS, USERS
from dare_job.spark.tables import write_parquet
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

LATEST_S = 4_102_444_800  # the year 2100; timestamps in milliseconds are far larger
RAW_CHARACTERS = 200
_REPORTED_REASONS = 5
_TYPES = {pa.string(): "string", pa.float32(): "float", pa.int64(): "bigint"}


@dataclass
class TableCounts:
    """Rows of one table: written, broken and duplicated (the last two are in the rejects)."""

    written: int = 0
    broken: int = 0
    duplicates: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


def write_checked(source: Source, into: AnyPath, max_reject_share: float) -> dict[str, TableCounts]:
    """Write ``interactions users items rejects`` (Parquet folders) to ``into``; returns counts by table.

    A repeated user or item id is rejected too but does not count as broken. Raises DataError if more than
    ``max_reject_share`` of a table's rows are broken.
    """
    into.mkdir(parents=True, exist_ok=True)
    _write_empty(into / "rejects.parquet", REJECTS)
    events = _write(_interactions(source), INTERACTIONS, "interactions", into, max_reject_share)
    counts = {"interactions": events}
    for name, table, schema in (("users", source.users, USERS), ("items", source.items, ITEMS)):
        if table is None:
            _write_empty(into / f"{name}.parquet", schema)
            counts[name] = TableCounts()
        else:
            counts[name] = _write(_entities(table, schema), schema, name, into, max_reject_share)
    return counts


def _interactions(source: Source) -> DataFrame:
    table = source.interactions
    rating, timestamp = _number(table, "rating", "double"), _number(table, "timestamp", "bigint")
    low, high = source.rating_range or (float("-inf"), float("inf"))
    reason = F.coalesce(
        F.col("problem"), _missing("user_id"), _missing("item_id"),
        F.when(F.col("rating").isNotNull() & rating.isNull(), F.lit("rating is not a number")),
        F.when(F.isnan(rating) | (F.abs(rating) == float("inf")), F.lit("rating is not a finite number")),
        F.when(~rating.between(low, high), F.lit(f"rating is outside {low:g} to {high:g}")),
        F.when(F.col("timestamp").isNull(), F.lit("timestamp is missing")),
        F.when(timestamp.isNull(), F.lit("timestamp is not a whole number")),
        F.when(~timestamp.between(0, LATEST_S), F.lit("timestamp is not in seconds from 1970 to 2100")))
    checked = table.withColumns({"reason": reason, "broken": reason.isNotNull()})
    return checked.withColumns({"rating": rating, "timestamp": timestamp})


def _entities(table: DataFrame, schema: pa.Schema) -> DataFrame:
    key = schema.names[0]
    broken = F.coalesce(F.col("problem"), _missing(key))
    # partition rows without an id by line, so that they are not all in one window
    order = Window.partitionBy(key, F.when(F.col(key).isNull(), F.col("line"))).orderBy("source", "line")
    numbered = table.withColumns({"broken": broken.isNotNull(), "_copy": F.row_number().over(order)})
    duplicate = F.when(F.col("_copy") > 1, F.lit(f"{key} is a duplicate: the first row is kept"))
    return numbered.withColumn("reason", F.coalesce(broken, duplicate))


def _missing(name: str) -> Column:
    text = F.coalesce(F.trim(F.col(name).cast("string")), F.lit(""))
    return F.when(text == "", F.lit(f"{name} is missing"))


def _number(table: DataFrame, name: str, kind: str) -> Column:
    """The column as a number; null if its text is not a number."""
    column_type = table.schema[name].dataType
    if isinstance(column_type, TimestampType | TimestampNTZType):
        return F.unix_timestamp(name)
    if isinstance(column_type, NumericType):
        return F.col(name).try_cast(kind)
    return F.trim(name).try_cast(kind)


def _write(checked: DataFrame, schema: pa.Schema, name: str, into: AnyPath, max_share: float) -> TableCounts:
    observation = Observation(name)
    columns = [F.col(f.name).cast(_TYPES.get(f.type, "map<string,string>")).alias(f.name) for f in schema]
    observed = checked.observe(
        observation, F.count(F.lit(1)).alias("rows"), F.count("reason").alias("rejected"),
        F.coalesce(F.sum(F.col("broken").cast("long")), F.lit(0)).alias("broken"))
    write_parquet(observed.where(F.col("reason").isNull()).select(*columns), into / f"{name}.parquet")
    rows, rejected, broken = (observation.get[key] for key in ("rows", "rejected", "broken"))
    counts = TableCounts(rows - rejected, broken, rejected - broken)
    if rejected:
        invalid = checked.where(F.col("reason").isNotNull())
        counts.reasons = _reasons(invalid, name, counts, rows, max_share)
        raw = F.substring("raw", 1, RAW_CHARACTERS).alias("raw")
        rejects = invalid.select("source", "line", "reason", raw)
        write_parquet(rejects, into / "rejects.parquet", mode="append")
    return counts


def _reasons(invalid: DataFrame, name: str, counts: TableCounts, rows: int,
             max_share: float) -> dict[str, int]:
    grouped = invalid.groupBy("reason").agg(
        F.count("*").alias("rows"), F.min_by(F.struct("source", "line"), "line").alias("first"),
        F.first("broken").alias("broken"))
    reasons = sorted(grouped.collect(), key=lambda row: -row["rows"])
    if counts.broken > max_share * rows:
        worst = "; ".join(f"{row['reason']} ({row['rows']} rows, first {row['first']['source']}"
                          f":{row['first']['line']})" for row in reasons if row["broken"])
        raise DataError(f"{counts.broken} of {rows} rows of {name} are unusable, more than "
                        f"input.max_reject_share = {max_share:g}: {worst}")
    return {row["reason"]: row["rows"] for row in reasons[:_REPORTED_REASONS]}


def _write_empty(folder: AnyPath, schema: pa.Schema) -> None:
    folder.mkdir()
    with paths.arrow_sink(folder / "part-empty.parquet") as sink:
        pq.write_table(schema.empty_table(), sink)
