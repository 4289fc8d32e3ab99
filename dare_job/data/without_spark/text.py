"""Lines of text files as Arrow arrays, split into fields. See ``dare_job/data/readers/text.py``."""

import csv
import gzip
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.data.without_spark.values import trimmed
from dare_job.storage.paths import AnyPath

_BLOCK_BYTES = 16 << 20
_MARK = "\ufeff"  # byte order mark


def lines(path: AnyPath, skipped: int = 0) -> Iterator[pa.Array]:
    """Batches of the lines of a file, gzipped or not, without blank ones and without the first ``skipped``.

    A line that is not UTF-8 is read as Latin-1.
    """
    for block in _blocks(path):
        kept, skipped = block[skipped:], max(0, skipped - len(block))
        text = _decoded(kept)
        if pc.any(pc.starts_with(text, _MARK)).as_py():
            text = pc.replace_substring_regex(text, f"^{_MARK}", "")
        text = text.filter(pc.not_equal(trimmed(text), ""))
        if len(text):
            yield text


def _blocks(path: AnyPath) -> Iterator[list[bytes]]:
    with path.open("rb") as stored:
        file, rest = gzip.GzipFile(fileobj=stored) if path.suffix == ".gz" else stored, b""
        while block := file.read(_BLOCK_BYTES):
            found = (rest + block).splitlines(keepends=True)
            rest = found.pop()  # its end may be in the next block
            yield [line.rstrip(b"\r\n") for line in found]
        if rest:
            yield [line for line in rest.splitlines()]


def _decoded(found: list[bytes]) -> pa.Array:
    try:
        return pa.array(found, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_decoded_line, found), pa.string())


def _decoded_line(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


def split_fields(text: pa.Array, separator: str, names: list[str]) -> pa.RecordBatch:
    """Named fields of lines; all are null in a line with another number of fields. Ignores quotes."""
    parts = pc.split_pattern(text, separator)
    counts = pc.list_value_length(parts).to_numpy(zero_copy_only=False)
    starts = np.cumsum(counts) - counts
    flat, wrong = pc.list_flatten(parts), counts != len(names)
    columns = [trimmed(flat.take(pa.array(starts + place, mask=wrong))) for place in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, names=names)


def header(path: AnyPath) -> list[str]:
    """Names in the first line of a csv file; empty if the file is empty."""
    first = next(_blocks(path), [b""])
    line = _decoded_line(first[0]).removeprefix(_MARK) if first else ""
    return [name.strip() for name in next(csv.reader([line]), [])]


def split_csv(text: pa.Array, names: list[str]) -> pa.RecordBatch:
    """Named fields of lines of csv; all are null in a line with another number of fields."""
    quoted = pc.match_substring(text, '"')
    plain = split_fields(text.filter(pc.invert(quoted)), ",", names)
    if not pc.any(quoted).as_py():
        return _without_empty(plain)
    rows = (next(csv.reader([line]), []) for line in text.filter(quoted).to_pylist())
    rows = [[field.strip(" ") for field in row] if len(row) == len(names) else [None] * len(names)
            for row in rows]
    parsed = pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in rows], plain.schema)
    order = np.argsort(np.concatenate([np.flatnonzero(~quoted.to_numpy(zero_copy_only=False)),
                                       np.flatnonzero(quoted.to_numpy(zero_copy_only=False))]))
    return _without_empty(pa.concat_batches([plain, parsed]).take(pa.array(order)))


def _without_empty(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Empty fields of csv are null."""
    empty = pa.scalar(None, pa.string())
    columns = [pc.if_else(pc.equal(column, ""), empty, column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
