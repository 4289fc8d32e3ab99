"""Raw rows of Amazon reviews in JSON lines. See ``dare_job/data/readers/amazon.py``."""

import json
import re
import warnings
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dare_job.data.readers import amazon as layout
from dare_job.data.without_spark import text, values
from dare_job.data.without_spark.source import Entities, InputTables
from dare_job.errors import DataError
from dare_job.storage.paths import AnyPath

_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&#39;", "'"), ("&amp;", "&"))
_FREE_ESCAPE = re.compile(r'\\([^"\\/bfnrtu])')  # a backslash before any other character is ignored
_ITEM = pa.schema([(name, pa.string()) for name in (
    "item_id", "title", "listed", "main_category", "brand")])
_EVENT = pa.schema([(name, pa.string()) for name in ("user_id", "item_id", "rating", "timestamp")])


def read(path: AnyPath) -> InputTables:
    """Raw tables of review and metadata files. Raises DataError if there are no reviews."""
    files = layout.json_files(path)
    reviews = [file for file in files if layout.file_kind(file) == "reviews"]
    metadata = [file for file in files if file not in reviews]
    if not reviews:
        raise DataError(f"{path} has no file of Amazon reviews (JSON lines with reviewerID or user_id)")
    return InputTables(lambda: _interactions(reviews), None,
                        (lambda: _items(metadata)) if metadata else None, layout.RANGE)


def _interactions(files: list[AnyPath]) -> Iterator[pa.RecordBatch]:
    for records in _records(files):
        yield pa.RecordBatch.from_pylist([{
            "user_id": _first(record, "reviewerID", "user_id"),
            "item_id": _first(record, "parent_asin", "asin"),
            "rating": _first(record, "overall", "rating"),
            "timestamp": _seconds(_first(record, "unixReviewTime", "timestamp")),
        } for record in records], _EVENT)


def _items(files: list[AnyPath]) -> Iterator[Entities]:
    for records in _records(files):
        rows = pa.RecordBatch.from_pylist([{
            "item_id": _first(record, "parent_asin", "asin"), "title": _plain(_first(record, "title")),
            "listed": _first(record, "categories", "category"),
            "main_category": _first(record, "main_category"),
            "brand": _first(record, "brand", "store")} for record in records], _ITEM)
        yield Entities(rows["item_id"], rows["title"], pa.array(np.zeros(len(rows), bool)), rows, _attributes)


def _records(files: list[AnyPath]) -> Iterator[list[dict]]:
    """Parsed lines; a line without an object gives an empty record."""
    for file in sorted(files, key=lambda file: file.name):
        python = bool(layout.PYTHON.search(layout.first_bytes(file)))
        for batch in text.lines(file):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about invalid escapes, one per line
                yield [_record(line, python) for line in batch.to_pylist()]


def _record(line: str, python: bool) -> dict:
    for each in (layout.as_json(line) if python else line, _FREE_ESCAPE.sub(r"\1", line)):
        try:
            record = json.loads(each, parse_float=str, parse_int=str)
            return record if isinstance(record, dict) else {}
        except (ValueError, RecursionError):
            continue
    return {}


def _first(record: dict, *names: str) -> str | None:
    """The first value that is neither null nor blank, as trimmed text."""
    for name in names:
        if (value := record.get(name)) is not None and (found := _as_text(value).strip(" ")):
            return found
    return None


def _as_text(value: object) -> str:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return values.as_text(value)


def _seconds(time: str | None) -> str | None:
    if time is None or not re.fullmatch(r"[+-]?\d{1,19}", time, re.ASCII):
        return time
    return str(int(time) // 1000) if layout.MILLISECONDS < int(time) < 2**63 else time


def _attributes(row: dict) -> dict[str, str]:
    listed = row["listed"]
    if listed is not None:
        leaves = re.findall(layout.LEAF, listed) if listed.startswith("[") else [listed]
    else:
        leaves = []
    path = list(dict.fromkeys([*filter(None, [row["main_category"]]), *leaves]))[:2]
    category, subcategory = [*path, None, None][:2]
    return values.attribute_map([("category", _plain(category)), ("subcategory", _plain(subcategory)),
                                 ("brand", _plain(row["brand"]))])


def _plain(title: str | None) -> str | None:
    """Without the HTML entities of the catalogue, trimmed."""
    if title is None:
        return None
    for entity, character in _ENTITIES:
        title = title.replace(entity, character)
    return title.strip(" ")
