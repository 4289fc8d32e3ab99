"""Tables of Amazon reviews: JSON lines of 2014, 2018 and 2023, or ratings as csv, with metadata.

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

import json
import re
from collections.abc import Sequence

import pyarrow.compute as pc

from dare_job.config.tables import EntitySettings, InteractionSettings
from dare_job.data.input.derive import with_columns
from dare_job.data.input.formats import open_file, parse_literal
from dare_job.data.input.scan import Form, Raw, bare_suffix, first_bytes
from dare_job.data.input.table import Table
from dare_job.errors import DataError
from dare_job.storage.paths import AnyPath

_HEADER = ("user_id", "parent_asin", "rating", "timestamp")
_ITEM_CHARACTERS = 10
_REVIEW = ("reviewerID", "user_id", "asin", "parent_asin", "overall", "rating", "unixReviewTime", "timestamp",
           "sort_timestamp")
_REVIEWER = {"reviewerID", "user_id"}  # top-level keys of reviews; metadata may have them only nested
_PRODUCT = {"asin", "parent_asin"}
_OTHERS = {"book_id"}  # keys of Goodreads, whose books have an asin too
_METADATA = ("asin", "parent_asin", "title", "categories", "category", "main_category", "brand", "store")
_MILLISECONDS = 100_000_000_000  # as seconds: the year 5138
_ATTRIBUTES = ["category", "subcategory", "brand"]
_SCRIPT = "getTime"  # in titles of 2018 that are a page's script
RANGE = [0.0, 5.0]
_JSON_SUFFIXES = (".json", ".jsonl")


def tables(path: AnyPath) -> dict[str, Table]:
    """Tables of a folder of review and metadata files, or of a file of reviews.

    Raises
    ------
    DataError
        There are no reviews.
    """
    files = json_files(path)
    reviews = [file for file in files if _kind(file) == "reviews"]
    metadata = [file for file in files if file not in reviews]
    if not reviews:
        raise DataError(f"{path} has no file of Amazon reviews (JSON lines with reviewerID or user_id)")
    return {"interactions": _reviews(reviews)} | ({"items": _metadata(metadata)} if metadata else {})


def pair(reviews: AnyPath, metadata: AnyPath) -> dict[str, Table]:
    """Tables of a file of reviews (or a csv of ratings) and a file of metadata.

    Raises
    ------
    DataError
        A file has other content.
    """
    if _kind(metadata) != "metadata":
        raise DataError(f"{metadata} is not Amazon metadata (JSON lines with asin and title, no reviewer): "
                        "set --meta to a file such as meta_Books.json.gz")
    if bare_suffix(reviews) == ".csv":
        return {"interactions": _ratings(reviews), "items": _metadata([metadata])}
    if _kind(reviews) != "reviews":
        raise DataError(f"{reviews} has no Amazon reviews (JSON lines with reviewerID or user_id, or the "
                        "ratings as .csv): set --reviews to a file such as Books.json.gz")
    return {"interactions": _reviews([reviews]), "items": _metadata([metadata])}


def is_amazon(path: AnyPath) -> bool:
    """Whether one of the files has reviews or metadata in JSON lines."""
    return any(_kind(file) for file in json_files(path))


def json_files(path: AnyPath) -> list[AnyPath]:
    """The JSON lines files of a folder, or the file itself, by name."""
    files = [path] if path.is_file() else sorted(path.iterdir(), key=lambda file: file.name)
    return [file for file in files if bare_suffix(file) in _JSON_SUFFIXES and file.is_file()
            and not file.name.startswith((".", "_"))]


def _kind(file: AnyPath) -> str | None:
    """reviews or metadata, by the first readable line, or by key names if no line is readable."""
    start = first_bytes(file)
    for line in start.splitlines():
        record = _object(line.decode("utf-8", "replace"))
        if _OTHERS & record.keys():
            return None
        if _PRODUCT & record.keys():
            return "reviews" if _REVIEWER & record.keys() else "metadata"
    if b'asin"' not in start and b"asin'" not in start:
        return None
    of_reviews = any(mark in start for mark in (b'"reviewerID"', b"'reviewerID'", b'"user_id"'))
    return "reviews" if of_reviews else "metadata"


def _object(line: str) -> dict:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = parse_literal(line)
    return record if isinstance(record, dict) else {}


def _reviews(files: Sequence[AnyPath]) -> Table:
    return Table("interactions", InteractionSettings(rating_range=RANGE), _opened(files), _review, _REVIEW)


def _metadata(files: Sequence[AnyPath]) -> Table:
    return Table("items", EntitySettings(attributes=_ATTRIBUTES), _opened(files), _product, _METADATA)


def _opened(files: Sequence[AnyPath]) -> tuple:
    return tuple(open_file(file, Form("json"), {}) for file in files)


def _review(raw: Raw) -> Raw:
    first = {"user_id": ("reviewerID", "user_id"), "item_id": ("parent_asin", "asin"),
             "rating": ("overall", "rating"), "timestamp": ("unixReviewTime", "timestamp", "sort_timestamp")}
    columns = {ours: pc.coalesce(*[raw.columns[name] for name in names]) for ours, names in first.items()}
    return _in_seconds(Raw({**raw.columns, **columns}, raw.lines, raw.raw, raw.problems))


def _in_seconds(raw: Raw) -> Raw:
    """Times in milliseconds, which are much larger, without their last three digits."""
    times = [time[:-3] if time and re.fullmatch(r"\d{12,19}", time) and int(time) > _MILLISECONDS else time
             for time in raw.columns["timestamp"].to_pylist()]
    return with_columns(raw, timestamp=times)


def _product(raw: Raw) -> Raw:
    columns = {name: column.to_pylist() for name, column in raw.columns.items()}
    listed = [categories or category for categories, category in zip(
        columns["categories"], columns["category"], strict=True)]
    path = [[*dict.fromkeys([*filter(None, [main]), *_leaves(text)])][:2] + [None, None]
            for main, text in zip(columns["main_category"], listed, strict=True)]
    return with_columns(
        raw, item_id=pc.coalesce(raw.columns["parent_asin"], raw.columns["asin"]),
        title=[None if title and _SCRIPT in title else title for title in columns["title"]],
        category=[first for first, *_ in path], subcategory=[second for _, second, *_ in path],
        brand=pc.coalesce(raw.columns["brand"], raw.columns["store"]))


def _leaves(listed: str | None) -> list[str]:
    """The strings in a list of one or two levels."""
    if not listed or not listed.startswith("["):
        return [listed] if listed else []
    try:
        values = json.loads(listed)
    except ValueError:  # text in brackets
        return [listed]
    return [leaf for value in values for leaf in (value if isinstance(value, list) else [value])
            if isinstance(leaf, str)]


def _ratings(file: AnyPath) -> Table:
    """A csv of ratings.

    Raises
    ------
    DataError
        The order of the fields is ambiguous.
    """
    rows = [line.split(",") for line in first_bytes(file).decode("utf-8", "replace").splitlines()]
    if rows and tuple(rows[0]) == _HEADER:
        form, names = Form("delimited"), {"item_id": "parent_asin"}
    else:
        order = _order(file, [row for row in rows if len(row) == 4])
        form, names = Form("delimited", ",", (*order, "rating", "timestamp"), "none"), {}
    return Table("interactions", InteractionSettings(rating_range=RANGE, columns=names), (open_file(file,
                                                                                                    form,
                                                                                              {}),),
                 _in_seconds)


def _order(file: AnyPath, rows: list[list[str]]) -> tuple[str, str]:
    """Names of the first two fields."""
    first, second = ([len(row[place]) == _ITEM_CHARACTERS for row in rows] for place in (0, 1))
    if sum(first) == sum(second):
        raise DataError(f"{file} is not a csv of Amazon ratings (item,user,rating,seconds, or user first): "
                        f"in its first {len(rows)} lines with four fields, item ids (ten characters) are "
                        "equally frequent in the first and second field; use reviews as JSON lines instead")
    return ("item_id", "user_id") if sum(first) > sum(second) else ("user_id", "item_id")
