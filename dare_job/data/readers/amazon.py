"""Reads Amazon reviews as JSON lines, gzipped or not, in the formats of 2014, 2018 and 2023.

Reviews: ``reviewerID asin overall unixReviewTime``, or ``user_id parent_asin rating timestamp`` with
milliseconds.
Metadata: ``asin`` or ``parent_asin``, ``title``, ``categories`` or ``main_category``, ``brand`` or ``store``.
The 2014 metadata has Python dict literals instead of JSON: {'title': None, 'new': True}.

Ratings without review text are csv files with four fields in one of three orders:

| year | header | fields |
| --- | --- | --- |
| 2014 | no | user, item, rating, seconds |
| 2018 | no | item, user, rating, seconds |
| 2023 | user_id,parent_asin,rating,timestamp | user, item, rating, milliseconds |

Item ids, which have ten characters, distinguish the first two.
"""

import ast
import gzip
import json
import re
import warnings
import zlib
from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dare_job.data.readers.casts import Source
from dare_job.data.readers.text import attribute_map, lines, split_fields
from dare_job.errors import DataError
from dare_job.storage.paths import AnyPath

RATINGS_SUFFIXES = (".csv", ".csv.gz")
_HEADER = ["user_id", "parent_asin", "rating", "timestamp"]
_ITEM_CHARACTERS = 10
MAX_CHARACTERS = 1 << 20  # longer lines are not parsed
_INVALID = "not JSON"
SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_REVIEW = ("reviewerID", "user_id", "asin", "parent_asin", "overall", "rating", "unixReviewTime", "timestamp")
_REVIEWER = {"reviewerID", "user_id"}  # top-level keys of reviews; metadata may have them only nested
_PRODUCT = {"asin", "parent_asin"}
_METADATA = ("asin", "parent_asin", "title", "categories", "category", "main_category", "brand", "store")
MILLISECONDS = 100_000_000_000  # as seconds: the year 5138

_LENIENT = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad",
            "allowBackslashEscapingAnyCharacter": "true"}

PYTHON = re.compile(rb"^\s*\{\s*u?'", re.MULTILINE)
LEAF = r'"((?:[^"\\]|\\.)*)"'  # a string in a list of one or two levels
_PEEK_BYTES = 1 << 16
RANGE = (0.0, 5.0)


def _ratings(file: AnyPath, spark: SparkSession) -> DataFrame:
    """Columns source, line, raw, problem, user_id, item_id, rating, timestamp, all values as text.

    Raises DataError if the order of the fields is ambiguous.
    """
    rows = [line.split(",") for line in first_bytes(file).decode("utf-8", "replace").splitlines()]
    has_header = bool(rows) and rows[0] == _HEADER
    order = ["user_id", "item_id"] if has_header else _order(file, [row for row in rows if len(row) == 4])
    table = lines(spark, file)
    if has_header:
        table = table.where("line > 1")
    return split_fields(table, ",", [*order, "rating", "timestamp"])


def _order(file: AnyPath, rows: list[list[str]]) -> list[str]:
    """Names of the first two fields."""
    first, second = ([len(row[place]) == _ITEM_CHARACTERS for row in rows] for place in (0, 1))
    if sum(first) == sum(second):
        raise DataError(f"{file} is not a csv of Amazon ratings (item,user,rating,seconds, or user first): "
                        f"in its first {len(rows)} lines with four fields, item ids (ten characters) are "
                        "equally frequent in the first and second field; use reviews as JSON lines instead")
    return ["item_id", "user_id"] if sum(first) > sum(second) else ["user_id", "item_id"]


def as_json(line: str) -> str:
    """Convert a line to JSON: JSON is unchanged, a dict literal is converted, other text is not JSON.

    Does not execute code.
    """
    try:
        json.loads(line)
        return line
    except (ValueError, RecursionError):
        pass
    if len(line) > MAX_CHARACTERS:
        return _INVALID
    try:
        value = ast.literal_eval(line.strip())
        return json.dumps(value, default=str) if isinstance(value, dict) else _INVALID
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return _INVALID


def _convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about invalid escapes, one per line
        for batch in batches:
            text = pa.array([as_json(line) for line in batch["raw"].to_pylist()], pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, text], names=[*batch.schema.names, "text"])


def json_files(path: AnyPath) -> list[AnyPath]:
    """The JSON lines files of a folder, or the file itself."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    return [file for file in files if file.is_file() and file.name.endswith(SUFFIXES)]


def read(path: AnyPath, spark: SparkSession) -> Source:
    """Raw tables of review and metadata files. Raises DataError if there are no reviews."""
    files = json_files(path)
    reviews = [file for file in files if file_kind(file) == "reviews"]
    metadata = [file for file in files if file not in reviews]
    if not reviews:
        raise DataError(f"{path} has no file of Amazon reviews (JSON lines with reviewerID or user_id)")
    return Source(_interactions(_parsed(reviews, _REVIEW, spark)), None,
                  _items(_parsed(metadata, _METADATA, spark)) if metadata else None, RANGE)


def read_pair(reviews: AnyPath, metadata: AnyPath, spark: SparkSession) -> Source:
    """Raw tables of a file of reviews (or a csv of ratings) and a file of metadata.

    Raises DataError with the file name if a file has other content.
    """
    if file_kind(metadata) != "metadata":
        raise DataError(f"{metadata} is not Amazon metadata (JSON lines with asin and title, no reviewer): "
                        "set --meta to a file such as meta_Books.json.gz")
    items = _items(_parsed([metadata], _METADATA, spark))
    if reviews.name.endswith(RATINGS_SUFFIXES):
        return Source(_in_seconds(_ratings(reviews, spark)), None, items, RANGE)
    if file_kind(reviews) != "reviews":
        raise DataError(f"{reviews} has no Amazon reviews (JSON lines with reviewerID or user_id, or the "
                        "ratings as .csv): set --reviews to a file such as Books.json.gz")
    return Source(_interactions(_parsed([reviews], _REVIEW, spark)), None, items, RANGE)


def first_bytes(file: AnyPath) -> bytes:
    """The unpacked start of a file, gzipped or not. Raises DataError if it cannot be read."""
    try:
        with file.open("rb") as stored:
            return (gzip.open(stored) if file.suffix == ".gz" else stored).read(_PEEK_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}") from None


def file_kind(file: AnyPath) -> str | None:
    """reviews or metadata, by the first readable line, or by key names if no line is readable."""
    start = first_bytes(file)
    for line in start.splitlines():
        try:
            record = json.loads(as_json(line.decode("utf-8", "replace")))
        except ValueError:
            continue
        if isinstance(record, dict) and (_REVIEWER | _PRODUCT) & record.keys():
            return "reviews" if _REVIEWER & record.keys() else "metadata"
    if any(mark in start for mark in (b'"reviewerID"', b"'reviewerID'", b'"user_id"')):
        return "reviews"
    return "metadata" if b"asin" in start else None


def _lines(file: AnyPath, spark: SparkSession) -> DataFrame:
    """Columns source, line, raw and ``text`` (the line as JSON). Only dict literals need Python."""
    table = lines(spark, file).select("source", "line", "raw")
    if PYTHON.search(first_bytes(file)):
        return table.mapInArrow(_convert, "source string, line bigint, raw string, text string")
    return table.withColumn("text", F.col("raw"))


def _parsed(files: list[AnyPath], names: tuple[str, ...], spark: SparkSession) -> DataFrame:
    table = reduce(DataFrame.unionByName, [_lines(file, spark) for file in files])
    schema = ", ".join(f"`{name}` string" for name in (*names, "_bad"))
    read = table.withColumn("_json", F.from_json("text", schema, _LENIENT))
    problem = F.when(F.col("_json._bad").isNotNull(), F.lit("not a JSON object"))
    return read.select("source", "line", "raw", problem.alias("problem"),
                       *[F.nullif(F.trim(F.col(f"_json.`{name}`")), F.lit("")).alias(name) for name in names])


def _interactions(table: DataFrame) -> DataFrame:
    return _in_seconds(table.select(
        "source", "line", "raw", "problem", F.coalesce("reviewerID", "user_id").alias("user_id"),
        F.coalesce("parent_asin", "asin").alias("item_id"), F.coalesce("overall", "rating").alias("rating"),
        F.coalesce("unixReviewTime", "timestamp").alias("timestamp")))


def _in_seconds(table: DataFrame) -> DataFrame:
    number = F.col("timestamp").try_cast("bigint")
    seconds = F.when(number > MILLISECONDS, F.floor(number / 1000).cast("string"))
    return table.withColumn("timestamp", F.coalesce(seconds, "timestamp"))


def _items(table: DataFrame) -> DataFrame:
    listed = F.coalesce("categories", "category")
    leaves = F.when(listed.startswith("["), F.regexp_extract_all(listed, F.lit(LEAF), F.lit(1)))
    leaves = F.coalesce(leaves, F.array_compact(F.array(listed)))
    path = F.array_distinct(F.concat(F.array_compact(F.array("main_category")), leaves))
    attributes = attribute_map(category=_plain_text(F.get(path, F.lit(0))),
                               subcategory=_plain_text(F.get(path, F.lit(1))),
                               brand=_plain_text(F.coalesce("brand", "store")))
    item = F.coalesce("parent_asin", "asin")
    return table.select("source", "line", "raw", "problem", item.alias("item_id"),
                        _plain_text(F.col("title")).alias("title"), attributes.alias("attributes"))


def _plain_text(text: Column) -> Column:
    """Replace the HTML entities of the catalogue and trim."""
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&#39;", "'"), ("&amp;", "&")):
        text = F.replace(text, F.lit(entity), F.lit(character))
    return F.trim(text)
