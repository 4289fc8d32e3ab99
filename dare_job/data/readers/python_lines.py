"""Lines in Python's notation of a dict, as in the Amazon metadata of 2014: {'title': None, 'new': True}."""

import ast
import json
import warnings
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

MOST_CHARACTERS = 1 << 20  # a longer line is not taken apart
_REFUSED = "not JSON"
_COLUMNS = "source string, line bigint, raw string, text string"


def with_json(table: DataFrame) -> DataFrame:
    """Add ``text`` to source, line and raw: the line where it is JSON, else its dict written as JSON."""
    return table.select("source", "line", "raw").mapInArrow(_converted, _COLUMNS)


def as_json(line: str) -> str:
    """The line itself where it is JSON, a literal dict as JSON, or a text that is no JSON. Runs no code."""
    try:
        json.loads(line)
        return line
    except (ValueError, RecursionError):
        pass
    if len(line) > MOST_CHARACTERS:
        return _REFUSED
    try:
        found = ast.literal_eval(line.strip())
        return json.dumps(found, default=str) if isinstance(found, dict) else _REFUSED
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return _REFUSED


def _converted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes, one for each line
        for batch in batches:
            text = pa.array([as_json(line) for line in batch["raw"].to_pylist()], pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, text], names=[*batch.schema.names, "text"])
