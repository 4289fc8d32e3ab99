"""Writes the contract tables of an input with Spark, and a table of the rejected rows.

Messages suggest the setting that would accept them.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from dare_job.data.input import doubts
from dare_job.data.input.source import InputSource
from dare_job.data.input.table import CONTRACT, MARKS, OF_TEXTS, Table, schema_of
from dare_job.errors import DataError
from dare_job.schemas import INTERACTIONS, REJECTS, TEXTS
from dare_job.spark.session import divide
from dare_job.spark.tables import write_parquet
from dare_job.storage import paths
from dare_job.storage.parquet_writer import parquet_writer
from dare_job.storage.paths import AnyPath

# reasons of rejects, the first that fits counts; key: of the settings of the table, column: our name
_HINTS = (
    ("timestamp is a date", "Dates as 20260131: {key}.time=%Y%m%d; with hours, as 2026013110: %Y%m%d%H"),
    ("timestamp is (not|neither)", "Set their unit or format: {key}.time=ms, or '%d.%m.%Y', or %Y%m%d%H%M%S "
     "for 20260131100000; the right column: {key}.columns={{timestamp: COLUMN}}"),
    ("rating is not a number", "Ratings as 4,5: {key}.decimal=comma; the right column, or none: "
     "{key}.columns={{rating: COLUMN}}, {{rating: null}}"),
    ("rating is outside", "Another range of ratings: {key}.rating_range=[LOW, HIGH]"),
    ("rating is", "The right column, or none: {key}.columns={{rating: COLUMN}}, {{rating: null}}"),
    ("expected", "Another separator, or quotes that are text: {key}.separator=';', {key}.quotes=none; if the "
     "header lacks a name, as that of R's row names: {key}.header=[NAME, ...]"),
    ("not a JSON object", "Each line must be one object; files of another format: {key}.format=csv"),
    (r"\w+ is not in ", "The file that translates ids, and its columns: {key}.ids"),
    (r"\w+ is list", "An entry of a list: {key}.query=\"SELECT {column}[0] AS {column}, ... FROM "
     "json.`/path`\"; the right column: {key}.columns={{{column}: COLUMN}}"),
    (r"\w+ is (dict|struct|map|an object)", "A key inside of an object: {key}.query=\"SELECT object.key AS "
     "{column}, ... FROM json.`/path`\"; the right column: {key}.columns={{{column}: COLUMN}}"),
    (r"\w+ is ", "The right column: {key}.columns={{{column}: COLUMN}}"),
)
_REPORTED_REASONS = 5
_SHOWN_CHARACTERS = 60  # of the first row of a reason
_OF_REJECTS = ("source", "part", "line", "problem", "raw")
# of rejected interactions, and of rows that count those of a batch
_REST = pa.schema([*MARKS, *[pa.field(name, pa.int64()) for name in ("rows", "oldest", "newest")]])
Batches = Iterator[pa.RecordBatch]


@dataclass
class TableCounts:
    """Rows of one table: written, broken and duplicated (the last two are in the rejects).

    Attributes
    ----------
    oldest, newest
        Smallest and largest time of the interactions.
    odd, odd_file
        Lines that are not of the encoding, and a file that has one.
    repeated, repeated_file
        Lines that repeat the header, and a file that has one.
    met
        Bits of the values of ``where`` that a row has.
    """

    written: int = 0
    broken: int = 0
    duplicates: int = 0
    oldest: int | None = None
    newest: int | None = None
    odd: int = 0
    odd_file: str | None = None
    repeated: int = 0
    repeated_file: str | None = None
    met: int | None = None
    reasons: dict[str, int] = field(default_factory=dict)


def write_checked(source: InputSource, into: AnyPath, max_reject_share: float, spark: SparkSession
                  ) -> dict[str, TableCounts]:
    """Write ``interactions users items rejects`` (Parquet folders) to ``into``; returns counts by table.

    A repeated user or item id is rejected too but does not count as broken.

    Raises
    ------
    DataError
        More than ``max_reject_share`` of a table's rows are broken.
    """
    into.mkdir(parents=True, exist_ok=True)
    _write_empty(into / "rejects.parquet", REJECTS)
    counts = {}
    for name, schema in CONTRACT.items():
        table = source.tables.get(name)
        if table is None:
            _write_empty(into / f"{name}.parquet", schema)
            counts[name] = TableCounts()
            continue
        if name == "interactions":
            table_counts = _write_interactions(table, into, max_reject_share, spark)
        else:
            rows = _without_copies(_rows(table, spark), schema.names[0], table.settings.distinct)
            table_counts = _write(rows, schema, name, into, max_reject_share)
        counts[name] = table_counts
        doubts.warn_of_mapping(table, table_counts.written + table_counts.broken, table_counts.oldest,
                               table_counts.newest, table_counts.met)
        doubts.warn_of_encoding(table, table_counts.odd, table_counts.odd_file)
        doubts.warn_of_headers(table, table_counts.repeated, table_counts.repeated_file)
    for name in OF_TEXTS:
        if table := source.tables.get(name):
            rows = _without_copies(_rows(table, spark), TEXTS.names[0], False)
            folder = into / "texts" / f"entity={name.partition('_')[0]}"
            counts[name] = _write(rows, TEXTS, name, into, max_reject_share, folder)
    return counts


def _rows(table: Table, spark: SparkSession) -> DataFrame:
    """The rows of a table, read by tasks."""
    return _in_tasks(table, spark, lambda number, batches: batches, schema_of(table.name))


def _in_tasks(table: Table, spark: SparkSession, work: Callable[[int, Batches], Batches], schema: pa.Schema
              ) -> DataFrame:
    """What ``work`` makes of the number of a task and the rows that it reads."""
    tasks = divide([(part, part.piece.size) for part in table.parts()], spark)
    reader = replace(table, files=())

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from work(number, chain.from_iterable(map(reader.read, tasks[number])))

    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    return numbers.mapInArrow(run, from_arrow_schema(schema))


def _write_interactions(table: Table, into: AnyPath, max_share: float, spark: SparkSession) -> TableCounts:
    """Write the interactions in the tasks that read them, since no row depends on another one.

    If Spark counts and writes the rows, this takes several times as long.
    """
    folder = into / "interactions.parquet"
    paths.make_folder(folder)
    target = str(folder)

    def write(number: int, batches: Batches) -> Batches:
        with parquet_writer(paths.path(target) / f"part-{number:05d}.parquet", INTERACTIONS) as add:
            for batch in batches:
                usable = pc.is_null(batch["problem"])
                rows = batch.filter(usable).select(INTERACTIONS.names)
                add(rows)
                if len(rows) < len(batch):
                    yield _rejected(batch.filter(pc.invert(usable)))
                yield _counted(batch, rows["timestamp"])

    rest = _in_tasks(table, spark, write, _REST).persist()
    try:
        checked = rest.withColumns({"reason": F.col("problem"), "broken": F.col("problem").isNotNull()})
        aggregates = checked.agg(*_aggregates()).first().asDict()
        counts = _with_rejects(checked, aggregates, table.name, into, max_share)
    finally:
        rest.unpersist()
    if not counts.written:
        _write_empty(folder, INTERACTIONS)
    return counts


def _rejected(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([
        rows[name] if name in _OF_REJECTS else pa.nulls(len(rows), kind)
        for name, kind in zip(_REST.names, _REST.types, strict=True)], schema=_REST)


def _counted(batch: pa.RecordBatch, times: pa.Array) -> pa.RecordBatch:
    """A row that counts those of a batch. ``times``: of those that are usable."""
    oldest, newest = pc.min_max(times).as_py().values()
    row = {"source": batch["source"][0].as_py(), "rows": len(batch), "oldest": oldest, "newest": newest,
           **{name: pc.sum(batch[name]).as_py() for name in ("odd", "repeated", "met")}}
    return pa.RecordBatch.from_pylist([row], schema=_REST)


def _without_copies(rows: DataFrame, key: str, distinct: bool) -> DataFrame:
    """Mark all rows of an id but the first: as duplicates, or with ``distinct`` leave them out."""
    # partition rows without an id by line, so that they are not all in one window
    order = Window.partitionBy(key, F.when(F.col(key).isNull(), F.col("line"))).orderBy("part", "line")
    numbered = rows.withColumns({"broken": F.col("problem").isNotNull(), "_copy": F.row_number().over(order)})
    if distinct:
        return numbered.where((F.col("_copy") == 1) | F.col("broken")).withColumn("reason", F.col("problem"))
    copy = F.when(F.col("_copy") > 1, F.lit(f"{key} is a duplicate: the first row is kept"))
    return numbered.withColumn("reason", F.coalesce("problem", copy))


def _write(checked: DataFrame, schema: pa.Schema, name: str, into: AnyPath, max_share: float,
           folder: AnyPath | None = None) -> TableCounts:
    observation = Observation(name)
    counted = {"rows": F.lit(1), **dict.fromkeys(("oldest", "newest"), F.lit(None).cast("long"))}
    observed = checked.withColumns(counted).observe(observation, *_aggregates())
    write_parquet(observed.where(F.col("reason").isNull()).select(*schema.names),
                  folder or into / f"{name}.parquet")
    return _with_rejects(checked, observation.get, name, into, max_share)


def _aggregates() -> list[Column]:
    """Counts of a table, of rows that count for one each or for those of a batch (``_REST``)."""
    columns = {"rows": F.coalesce(F.sum("rows"), F.lit(0)), "rejected": F.count("reason"),
               "broken": F.coalesce(F.sum(F.col("broken").cast("long")), F.lit(0)),
               "oldest": F.min("oldest"), "newest": F.max("newest"), "met": F.bit_or("met")}
    for mark in ("odd", "repeated"):
        columns |= {mark: F.coalesce(F.sum(mark), F.lit(0)),
                    f"{mark}_file": F.min(F.when(F.col(mark) > 0, F.col("source")))}
    return [column.alias(name) for name, column in columns.items()]


def _with_rejects(checked: DataFrame, aggregates: dict, name: str, into: AnyPath, max_share: float
                  ) -> TableCounts:
    """Write the rejected rows of a table; return its counts, by the ``aggregates`` of its rows."""
    rows, rejected, broken = (aggregates[key] for key in ("rows", "rejected", "broken"))
    others = {key: aggregates[key] for key in ("oldest", "newest", "odd", "odd_file", "repeated",
                                               "repeated_file", "met")}
    counts = TableCounts(rows - rejected, broken, rejected - broken, **others)
    if rejected:
        invalid = checked.where(F.col("reason").isNotNull())
        counts.reasons = _reasons(invalid, name, counts, rows, max_share)
        rejects = invalid.select("source", "line", "reason", "raw")
        write_parquet(rejects, into / "rejects.parquet", mode="append")
    return counts


def _reasons(invalid: DataFrame, name: str, counts: TableCounts, rows: int,
             max_share: float) -> dict[str, int]:
    grouped = invalid.groupBy("reason").agg(
        F.count("*").alias("rows"), F.min_by(F.struct("source", "line", "raw"), "line").alias("first"),
        F.first("broken").alias("broken"))
    reasons = sorted(grouped.collect(), key=lambda row: -row["rows"])
    if counts.broken > max_share * rows:
        worst = "; ".join(f"{row['reason']} ({row['rows']} rows, first {_shown(row['first'])})"
                          for row in reasons if row["broken"])
        raise DataError(f"{counts.broken} of {rows} rows of {name} are unusable, more than "
                        f"input.max_reject_share = {max_share:g}: {worst}. "
                        f"{hint(name, next(row['reason'] for row in reasons if row['broken']))}")
    return {row["reason"]: row["rows"] for row in reasons[:_REPORTED_REASONS]}


def _shown(row) -> str:
    return f"{row['source']}:{row['line']}: {row['raw'][:_SHOWN_CHARACTERS]!r}"


def _write_empty(folder: AnyPath, schema: pa.Schema) -> None:
    paths.make_folder(folder)
    with paths.arrow_sink(folder / "part-empty.parquet") as sink:
        pq.write_table(schema.empty_table(), sink)


def hint(table: str, reason: str) -> str:
    """What to set where rows of a table are rejected for a reason; empty if no setting mends it."""
    template = next((text for pattern, text in _HINTS if re.match(pattern, reason)), "")
    return template.format(key=f"input.tables.{table}", column=reason.partition(" ")[0])
