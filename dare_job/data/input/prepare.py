"""Reads the input into the contract tables, once per date and input."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from dare_job.config.settings import InputSettings
from dare_job.config.tables import TableSettings
from dare_job.data.history import end_of_date
from dare_job.data.input import checks
from dare_job.data.input.formats import FileInfo
from dare_job.data.input.scan import Form
from dare_job.data.input.source import InputSource, input_identity, opened, tables_of_pair
from dare_job.data.input.table import Table
from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.spark import executors
from dare_job.spark.session import failure_cause, refused_resource
from dare_job.spark.tables import write_parquet
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.workspace import committing, digest, done_record, is_done

_LOG = logging.getLogger("dare_job")
_MAX_NAMED = 8  # columns that a log line names
_WORKER = "dare_job.errors.DataError: "  # before the message, in a traceback of a worker


@dataclass(frozen=True)
class InputCounts:
    """Numbers of rows that were read.

    Attributes
    ----------
    first, last
        Time of the first and the last interaction, in seconds since 1970; None if there are none.
    broken
        Rejects that count against ``input.max_reject_share``.
    duplicates
        Rejects that repeat an id.
    reasons
        Rejects by the most common reasons of each table.
    """

    format: str
    interactions: int
    users: int
    items: int
    first: int | None
    last: int | None
    broken: int
    duplicates: int
    reasons: dict[str, int]


@dataclass(frozen=True)
class UsableCounts:
    """What the run of a date can use of the input.

    Attributes
    ----------
    up_to_date
        Interactions before the end of the date.
    titled
        Items with a title. Only these get texts and occur in histories.
    """

    up_to_date: int
    titled: int


@progress.doing("reading the input")
def prepare_input(job: Job, check: Callable[[dict], None] = lambda record: None) -> AnyPath:
    """Folder with ``interactions users items rejects.parquet``. Reads the input again only if it changed.

    Parameters
    ----------
    check
        Gets the fields of ``InputCounts`` and ``UsableCounts``. If it raises, the input does not count as
        read, and the next call reads it again.

    Raises
    ------
    DataError
        As ``read_input``.
    Exception
        As ``check``.
    """
    settings = job.config.input
    folder = job.space.stage("input")
    fingerprint = input_fingerprint(settings)
    if is_done(folder, fingerprint):
        check(done_record(folder))
        return folder
    record: dict = {}
    with committing(folder, fingerprint, record) as staging:
        record |= asdict(read_input(settings, staging, job.spark))
        record |= asdict(count_usable(staging, end_of_date(job)))
        check(record)
    return job.space.stage("input")


def count_usable(folder: AnyPath, end_s: int) -> UsableCounts:
    """Counts of an input that was read to ``folder``, for the date that ends at ``end_s``.

    Without Spark: the statistics of the files tell which parts lie before the end as a whole.
    """
    interactions, items = (paths.parquet_dataset(folder / f"{name}.parquet")
                           for name in ("interactions", "items"))
    return UsableCounts(interactions.count_rows(filter=pc.field("timestamp") < end_s),
                        items.count_rows(filter=pc.utf8_trim(pc.field("title"), characters=" ") != ""))


def input_fingerprint(settings: InputSettings) -> str:
    """Digest of the settings and of names, sizes and times of the files. It does not read what a query
    reads."""
    source = str(paths.path(settings.path).absolute()) if settings.path else None  # one of several spellings
    recorded = [field.name for counts in (InputCounts, UsableCounts) for field in fields(counts)]
    chosen = settings.model_dump(exclude={"path", "knowledge"}, exclude_defaults=True)
    return digest([recorded, source, chosen, input_identity(settings)])


def read_input(settings: InputSettings, into: AnyPath, spark: SparkSession) -> InputCounts:
    """Write ``interactions users items rejects`` (Parquet folders, see ``schemas``) to ``into``.

    Raises
    ------
    DataError
        The path does not exist, its format is unknown, a file or column is damaged or missing, or more than
        ``max_reject_share`` of the rows are unusable.
    InfrastructureError
        Executors were lost.
    PySparkException, Py4JError
        Java has ended, or a disk is full.
    """
    into.mkdir(parents=True, exist_ok=True)
    with _opened(settings, into, spark) as source:
        return _written(source, into, settings.max_reject_share, spark, str(settings.path or "the input"))


def read_amazon(reviews: AnyPath, metadata: AnyPath, into: AnyPath, max_reject_share: float,
                spark: SparkSession) -> InputCounts:
    """``read_input`` for a file of Amazon reviews (JSON lines, or a csv of ratings) and one of metadata."""
    return _written(tables_of_pair(reviews, metadata), into, max_reject_share, spark, str(reviews))


@contextmanager
def _opened(settings: InputSettings, into: AnyPath, spark: SparkSession) -> Iterator[InputSource]:
    """The tables, with the results of queries."""
    queries = {name: table for name, table in settings.tables if table.query}
    results = {name: into / f".query-{name}.parquet" for name in queries}
    try:
        for name, table in queries.items():
            write_query(name, table, results[name], spark)
        with opened(settings, into, results) as source:
            yield source
    finally:
        for folder in results.values():
            paths.remove_tree(folder)


def write_query(name: str, settings: TableSettings, folder: AnyPath, spark: SparkSession) -> None:
    """Write the needed columns of a query's result, or of a table of the catalogue, to a Parquet folder.

    A file without rows has all columns, so that messages can name them.

    Raises
    ------
    DataError
        Spark cannot run it.
    """
    from pyspark.errors import PySparkException

    query, key = settings.query, f"input.tables.{name}.query"
    try:
        with executors.one_line_errors():
            rows = spark.table(query) if len(query.split()) == 1 else spark.sql(query)
            whole = FileInfo(folder, Form("parquet"), dict.fromkeys(rows.columns), ())
            names = Table(name, settings, (whole,)).needed()
            if names != rows.columns:
                write_parquet(rows.limit(0), folder)
            if names:
                write_parquet(rows.select(*map(_quoted, names)), folder, mode="append")
    except PySparkException as error:
        if refused_resource(error):
            raise
        raise DataError(f"{key} = {query}: {failure_cause(error)}") from error


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


def _written(source: InputSource, into: AnyPath, max_reject_share: float, spark: SparkSession, where: str
             ) -> InputCounts:
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    for table in source.tables.values():
        if unused := table.unused():
            more = f" and {len(unused) - _MAX_NAMED} more" if len(unused) > _MAX_NAMED else ""
            use = f"; to use some: {table.key}.attributes=[NAME, ...]" if table.name != "interactions" else ""
            _LOG.info("%s: columns that are not read: %s%s%s", table.name, ", ".join(unused[:_MAX_NAMED]),
                      more, use)
    try:
        with executors.one_line_errors():
            counts = checks.write_checked(source, into, max_reject_share, spark)
    except (PySparkException, Py4JError) as error:
        if isinstance(error, Py4JNetworkError) or refused_resource(error):
            raise  # Java has ended, or a disk is full; the input is fine
        raise DataError(_cause(error, where)) from error
    tables = counts.values()
    return InputCounts(
        source.form, *[counts[name].written for name in ("interactions", "users", "items")],
        counts["interactions"].oldest, counts["interactions"].newest,
        sum(table.broken for table in tables), sum(table.duplicates for table in tables),
        {reason: rows for table in tables for reason, rows in table.reasons.items()})


def _cause(error: Exception, where: str) -> str:
    """The message of a DataError that a worker raised, or the first line of Spark's."""
    marks = [line.split(_WORKER, 1)[1] for line in str(error).splitlines() if _WORKER in line]
    return marks[-1] if marks else f"{where} could not be read: {failure_cause(error)}"
