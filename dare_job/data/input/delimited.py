"""Text files of fields between separators: CSV, TSV and others, with quotes or without."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.data.input.scan import Form, Piece, Raw, line_blocks
from dare_job.storage.paths import AnyPath

_EXCEL = re.compile("sep=.")  # what Excel writes before the header
_AROUND = ' \t"\ufeff'  # names in a header that is repeated
_MAX_LINES = 1000  # of a record in quotes
_FIRST_ROWS = 100  # that tell whether a separator ends each row
csv.field_size_limit(2**31 - 1)  # the default ends the file at a field of 128 Ki characters


def header(file: AnyPath, form: Form) -> list[str]:
    """Names in the first line that can have them; empty if the file is empty.

    A column without a name is the last one where a separator ends each row, but not the header.
    """
    for _, lines in line_blocks(Piece(str(file)), form.encoding):
        names, after = _header(lines, form)
        rows = [_fields(line, form) for line in lines[after:after + _FIRST_ROWS] if line.strip()]
        ended = rows and all(len(row) == len(names) + 1 and not row[-1].strip() for row in rows)
        return [*names, ""] if ended else names
    return []


def _header(lines: list[str], form: Form) -> tuple[list[str], int]:
    """Names, which may have line breaks in quotes, and how many lines they and what is before them take."""
    place, form = header_place(lines, form.separator), replace(form, spaced=True)
    fields, line_count = None, 1
    if form.quotes != "none" and '"' in lines[place]:
        fields, line_count = _complete(lines[:place + _MAX_LINES], place, iter(()), form)
    if not fields:
        fields, line_count = _fields(lines[place], form), 1
    return [re.sub(r"\s*\n\s*", " ", name.strip()) for name in fields], place + line_count


def header_place(lines: Sequence[str], *separators: str) -> int:
    """Place of the line with names: after blank ones, a line sep=; of Excel, and comments."""
    return next((at for at, line in enumerate(lines) if line.strip() and not _EXCEL.fullmatch(line) and not (
        line.startswith("#") and _is_comment(line, lines[at + 1:at + _FIRST_ROWS], separators))), 0)


def _is_comment(line: str, after: Sequence[str], separators: Sequence[str]) -> bool:
    """Whether a line with # has one field, or a blank after it and fewer fields than the next other line."""
    following = next((each for each in after if each.strip() and not each.startswith("#")), "")
    own, others = (max(map(each.count, separators)) for each in (line, following))
    return not own or (line.startswith("# ") and own < others)


def read(piece: Piece, form: Form, columns: Sequence[str] | None, counts: Counter) -> Iterator[Raw]:
    """Raw batches of a piece, with those of ``columns`` that it has; None: all."""
    names = list(form.header or header(piece.path, form))
    repeated, at_start = _folded(names), piece.start == 0
    last = tuple(repeated[-1:])
    blocks = line_blocks(piece, form.encoding, counts)
    for first, lines in blocks:
        if at_start:
            before, at_start = _lines_before_rows(lines, form), False
            counts["repeated"] += before * bool(form.header)
            first, lines = first + before, lines[before:]
        quoted = form.quotes != "none" and any('"' in line for line in lines)
        if quoted:
            numbers, rows, raws = _records(first, lines, blocks, form, len(names))
            kept = [at for at, row in enumerate(rows) if not _repeats(row, repeated)]
            counts["repeated"] += len(rows) - len(kept)
            rows, raws = [rows[at] for at in kept], [raws[at] for at in kept]
            yield _batch(names, _padded(rows, names), numbers[kept], raws, columns)
        else:
            present = [(number, line) for number, line in enumerate(lines, first) if line.strip()]
            kept = [(number, line) for number, line in present if not (
                line.lower().endswith(last) and _repeats(line.split(form.separator), repeated))]
            counts["repeated"] += len(present) - len(kept)
            if kept:
                numbers, texts = zip(*kept, strict=True)
                yield _split(names, texts, np.array(numbers), form.separator, columns)


def _lines_before_rows(lines: Sequence[str], form: Form) -> int:
    """Lines at the start of a file that are no rows: up to its header, or the one that a setting repeats."""
    if form.header is None:
        return _header(lines, form)[1]
    equal = {*_folded(_fields(lines[0], form))} & {*_folded(form.header)}
    return int(len(equal) > 1 and 2 * len(equal) >= len(form.header))


def _folded(names: Sequence[str]) -> list[str]:
    """Names without blanks, quotes and a byte order mark around them, in lower case."""
    return [name.strip(_AROUND).lower() for name in names]


def _repeats(row: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a row is a header, as where files were joined; ``names`` are folded."""
    return _folded(row[-1:]) == names[-1:] and _folded(row) == names


def _split(names: list[str], lines: Sequence[str], numbers: np.ndarray, separator: str,
           columns: Sequence[str] | None) -> Raw:
    """Fields of lines without quotes, in Arrow."""
    parts = pc.split_pattern(pa.array(lines, pa.string()), separator)
    counts = pc.list_value_length(parts).to_numpy(zero_copy_only=False)
    starts, flat, wrong = np.cumsum(counts) - counts, pc.list_flatten(parts), counts != len(names)
    arrays = {name: _null_if_empty(flat.take(pa.array(starts + place, mask=wrong)))
              for place, name in enumerate(names) if columns is None or name in columns}
    return Raw(arrays, numbers, lines.__getitem__, _wrong_count(counts, wrong, len(names)))


def _null_if_empty(column: pa.Array) -> pa.Array:
    column = pc.utf8_trim(column, " ")
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


def _wrong_count(counts: np.ndarray, wrong: np.ndarray, expected: int) -> pa.Array:
    if not wrong.any():
        return pa.nulls(len(counts), pa.string())
    return pa.array([f"expected {expected} fields, found {count}" if bad else None
                     for count, bad in zip(counts, wrong, strict=True)], pa.string())


def _records(first: int, lines: list[str], blocks: Iterator[tuple[int, list[str]]], form: Form, count: int):
    """Line numbers, fields and texts of records, whose quoted fields may contain line breaks.

    A record that is not complete at the end of the block goes on in the next one.
    """
    numbers, rows, raws, at = [], [], [], 0
    while at < len(lines):
        if lines[at].strip():
            row, line_count = _record_at(lines, at, blocks, form, count)
            numbers.append(first + at)
            rows.append(row)
            raws.append("\n".join(lines[at:at + line_count]))
            at += line_count
        else:
            at += 1
    return np.array(numbers, np.int64), rows, raws


def _record_at(lines: list[str], at: int, blocks: Iterator[tuple[int, list[str]]], form: Form, count: int
               ) -> tuple[list[str], int]:
    """Fields of the record that begins at a line, and how many lines it takes.

    Its quotes may follow a blank, or, where they are not doubled, be written after a backslash, if that makes
    ``count`` fields. If they are not those of a record at all, the record is one line, so that no other is
    lost, and where separators make ``count`` fields of it, only quotes around a whole field are no text.
    """
    if f"{form.separator} " in lines[at] and ' "' in lines[at] and form.separator != " ":
        spaced, of_spaced = _complete(lines, at, blocks, replace(form, spaced=True))
        if len(spaced or ()) == count:
            return spaced, of_spaced
    row, line_count = _complete(lines, at, blocks, form)
    if len(row or ()) != count and any('\\"' in line for line in lines[at:at + line_count]):
        escaped, of_escaped = _complete(lines, at, blocks, replace(form, quotes="escaped"))
        if len(escaped or ()) == count:
            return escaped, of_escaped
    if row:
        return row, line_count
    fields = lines[at].split(form.separator)
    if len(fields) == count:
        return [(_quoted_fields([field.strip(" ")], form) or [field])[0] for field in fields], 1
    return _fields(lines[at], form, None if line_count == 1 and row is not None else "none"), 1


def _complete(lines: list[str], at: int, blocks: Iterator[tuple[int, list[str]]], form: Form
              ) -> tuple[list[str] | None, int]:
    """Fields of a record, as ``_quoted_fields``, and how many lines were read of it."""
    line_count, row = 1, _quoted_fields(lines[at:at + 1], form)
    while row is None and line_count < _MAX_LINES:
        if at + line_count == len(lines):
            lines += next(blocks, (0, []))[1]
        if at + line_count == len(lines):
            break
        line_count += 1
        if '"' in lines[at + line_count - 1]:
            row = _quoted_fields(lines[at:at + line_count], form)
    return row, line_count


def _quoted_fields(lines: list[str], form: Form) -> list[str] | None:
    """Fields of a record; None if a quote is still open at its end, empty if they are no record."""
    if form.quotes == "escaped":  # \N is no value; the backslash must not be taken from it
        lines = [_null_mark(form.separator).sub(r"\\\\N", line) for line in lines]
    try:
        records = list(csv.reader([line + "\n" for line in lines[:-1]] + lines[-1:], strict=True,
                                  **_dialect(form)))
    except csv.Error as error:
        return None if "unexpected end" in str(error) else []
    return records[0] if len(records) == 1 else []


@cache
def _null_mark(separator: str) -> re.Pattern:
    """\\N as a whole field."""
    return re.compile(rf"(?<![^{re.escape(separator)}])\\N(?![^{re.escape(separator)}])")


def _fields(line: str, form: Form, quotes: str | None = None) -> list[str]:
    """Fields of one line."""
    if len(form.separator) > 1 or (quotes or form.quotes) == "none" or '"' not in line:
        return line.split(form.separator)
    return next(csv.reader([line.replace("\r", " ")], **_dialect(form)), [])  # refused outside of quotes


def _dialect(form: Form) -> dict:
    escaped = {"doublequote": False, "escapechar": "\\"} if form.quotes == "escaped" else {}
    return {"delimiter": form.separator, "skipinitialspace": form.spaced, **escaped}


def _padded(rows: list[list[str]], names: list[str]) -> tuple[list[list[str | None]], pa.Array]:
    counts = np.array([len(row) for row in rows])
    wrong = counts != len(names)
    fitting = [[None] * len(names) if bad else row for row, bad in zip(rows, wrong, strict=True)]
    return fitting, _wrong_count(counts, wrong, len(names))


def _batch(names: list[str], fitting: tuple, numbers: np.ndarray, raws: list[str],
           columns: Sequence[str] | None) -> Raw:
    rows, problems = fitting
    values = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = {name: _null_if_empty(pa.array(column, pa.string()))
              for name, column in zip(names, values, strict=True) if columns is None or name in columns}
    return Raw(arrays, numbers, raws.__getitem__, problems)
