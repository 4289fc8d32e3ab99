"""Formats of files: Parquet, fields between separators, JSON lines, and tables of Delta and Iceberg.

``read(piece, form, columns)`` yields raw batches with the columns of a piece, or those of ``columns`` that it
has.
"""

import ast
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.data.input import delimited, values
from dare_job.data.input.scan import (
    Form,
    Piece,
    Raw,
    bare_suffix,
    first_bytes,
    line_blocks,
    other_format,
    readable,
    text_pieces,
)
from dare_job.errors import DataError
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_ROWS = 1 << 16
_GROUP_BYTES, _GROUP_ROWS = 64 << 20, 1 << 20
MAX_CHARACTERS = 1 << 20  # longer lines of dict literals are not parsed
_FREE_ESCAPE = re.compile(r'\\([^"\\/bfnrtu])')  # JSON knows no such escape; the backslash is left out
USUAL = ("::", "\t", ";", "|", ",")
_SEPARATORS = {".tsv": "\t", ".tab": "\t", ".csv": ",", ".psv": "|"}


def detect(file: AnyPath, separator: str | None = None, header: Sequence[str] | None = None,
           quotes: str = "doubled", encoding: str | None = None, kind: str | None = None) -> Form:
    """The form of a file by its content.

    Raises
    ------
    DataError
        It is not recognized, or the file cannot be read.
    """
    start = first_bytes(file).removeprefix(b"\xef\xbb\xbf")
    if kind == "parquet" or (kind is None and start[:4] == b"PAR1"):
        return Form("parquet")
    if kind == "json" or (kind is None and not separator and re.match(rb"\s*\{", start)):
        return Form("json", encoding=encoding)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{file} is UTF-16, which is not supported: convert it to UTF-8 "
                        f"(iconv -f UTF-16 -t UTF-8)")
    if other := other_format(start):
        raise DataError(f"{file} is {other}")
    if start[:4] == b"PAR1" or b"\0" in start[:1000]:
        raise DataError(f"{file} is neither Parquet, nor text with separators, nor JSON lines")
    if re.match(rb"\s*\[\s*\{", start):
        raise DataError(f"{file} is one JSON array: write one object per line (JSON lines)")
    separator = separator or {"csv": ",", "tsv": "\t"}.get(kind or "") or _separator(file, start)
    quotes = quotes if len(separator) == 1 else "none"  # a quote is text beside such separators
    return Form("delimited", separator, tuple(header) if header else None, quotes, encoding)


def _separator(file: AnyPath, start: bytes) -> str:
    """The separator of the header: the most frequent one, of several that of the suffix."""
    lines = start.decode("utf-8", "replace").splitlines() or [""]
    if lines[0][:-1] == "sep=":
        return lines[0][-1]
    line = lines[delimited.header_place(lines, *USUAL)]
    usual = _SEPARATORS.get(bare_suffix(file))
    best = max((usual or USUAL[0], *USUAL), key=line.count)
    return best if best in line else usual or ","


@dataclass(frozen=True)
class FileInfo:
    """A file of a table: how it is read, its columns (with types in a Parquet file, else None), its parts.

    Attributes
    ----------
    repeated
        Names that several columns have.
    """

    path: AnyPath
    form: Form
    types: dict[str, pa.DataType | None]
    pieces: tuple[Piece, ...]
    repeated: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The file's name, after the folders that give columns."""
        folders = [f"{column}={value}" for column, value in self._partition.items()]
        return "/".join([*folders, readable(self.path.name)])

    @property
    def columns(self) -> dict[str, pa.DataType | None]:
        """``types``, and the columns that folders give."""
        return dict.fromkeys([*self.types, *self._partition]) | self.types

    @property
    def _partition(self) -> dict[str, str | None]:
        return self.pieces[0].partition if self.pieces else {}


def is_blank(file: AnyPath) -> bool:
    """Whether a text file has nothing but blank lines."""
    return not first_bytes(file).strip(b"\xef\xbb\xbf \t\r\n")


def open_file(file: AnyPath, form: Form, partition: dict[str, str | None]) -> FileInfo:
    """Columns and parts of a file.

    Raises
    ------
    DataError
        The file is damaged.
    """
    if form.kind == "parquet":
        table = _metadata(file)
        schema = table.schema.to_arrow_schema()
        return FileInfo(file, form, dict(zip(schema.names, schema.types, strict=True)),
                        tuple(_row_groups(file, table, partition)), _repeated(schema.names))
    names = text_columns(file, form)
    quotes = form.kind == "delimited" and form.quotes != "none"
    return FileInfo(file, form, dict.fromkeys(names), tuple(text_pieces(file, partition, quotes)),
                    _repeated(names))


def text_columns(file: AnyPath, form: Form) -> Sequence[str]:
    """Names of the columns of a text file, by its first lines."""
    if form.kind == "json":
        return _keys(file, form)
    return form.header or delimited.header(file, form)


def _repeated(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name for name in names if names.count(name) > 1) if len(set(names)) < len(names) \
        else frozenset()


def _row_groups(file: AnyPath, table: pq.FileMetaData, partition: dict[str, str | None]) -> Iterator[Piece]:
    """Parts of row groups that together have some 64 MB or a million rows."""
    start = before = rows = size = 0
    for group in range(table.num_row_groups):
        info = table.row_group(group)
        if rows and (size + info.total_byte_size > _GROUP_BYTES or rows + info.num_rows > _GROUP_ROWS):
            yield Piece(str(file), start, group, before, size, partition)
            start, before, rows, size = group, before + rows, 0, 0
        rows, size = rows + info.num_rows, size + info.total_byte_size
    yield Piece(str(file), start, table.num_row_groups, before, size, partition)


def _metadata(file: AnyPath) -> pq.FileMetaData:
    try:
        with paths.arrow_source(file) as source:
            return pq.read_metadata(source)
    except UnicodeEncodeError:
        raise DataError(f"{readable(str(file))}: its path is not UTF-8, as Arrow needs: rename it") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} is not a readable Parquet file: {_first_line(error)}") from None


def _keys(file: AnyPath, form: Form) -> list[str]:
    """Keys of the first thousand objects."""
    records = (record for _, lines in line_blocks(Piece(str(file)), form.encoding)
               for record in map(_record, lines[:1000]) if record)
    return list(dict.fromkeys(key for record, _ in zip(records, range(1000), strict=False) for key in record))


def read(piece: Piece, form: Form, columns: Sequence[str] | None, counts: Counter | None = None,
         ours: Mapping[str, str] = MappingProxyType({})) -> Iterator[Raw]:
    """Raw batches of a piece, with the columns that are asked for and present; None: all.

    Parameters
    ----------
    counts
        As in ``line_blocks``; its ``repeated`` grows by lines that repeat the header and are no rows.
    ours
        Our names of columns. In JSON, which becomes text, only text and numbers are ids, and a title is text,
        a list, or an object with a name.
    """
    counts = Counter() if counts is None else counts
    if form.kind == "json":
        return _json(piece, form, columns, counts, ours)
    if form.kind == "parquet":
        return _parquet(piece, columns)
    return delimited.read(piece, form, columns, counts)


def _parquet(piece: Piece, columns: Sequence[str] | None) -> Iterator[Raw]:
    path, line = piece.path, piece.before + 1
    try:
        # INT96 in ns, the default, would wrap beyond the year 2262
        with paths.arrow_source(path) as source, \
                pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
            names = file.schema_arrow.names
            wanted = [name for name in names if columns is None or name in columns]
            groups = list(range(piece.start, piece.end))
            # in Parquet a dot divides names of nested columns, so that columns are chosen by their position
            for batch in file.iter_batches(_ROWS, row_groups=groups, columns=_leaves(file, wanted)):
                arrays = {name: batch.column(batch.schema.names.index(name)) for name in wanted}
                yield Raw(arrays, np.arange(line, line + len(batch)), _Row(arrays),
                          pa.nulls(len(batch), pa.string()))
                line += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise damage(path, piece, error) from error


def _leaves(file: pq.ParquetFile, wanted: Iterable[str]) -> list[str]:
    names, schema = set(wanted), file.schema
    return [schema.column(at).path for at in range(len(schema)) if _root(schema.column(at).path, names)]


def _root(path: str, names: set[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:count]) in names for count in range(1, len(parts) + 1))


def damage(path: AnyPath, piece: Piece, error: Exception) -> DataError:
    """The column and row group of a Parquet file that cannot be read."""
    try:
        with paths.arrow_source(path) as source, pq.ParquetFile(source) as file:
            for name in file.schema_arrow.names:
                for group in range(piece.start, piece.end):
                    try:
                        file.read_row_group(group, columns=_leaves(file, [name]))
                    except (pa.ArrowException, OSError) as damage:
                        return DataError(f"{path}: column {name} is damaged in row group {group}: "
                                         f"{_first_line(damage)}")
    except (pa.ArrowException, OSError):
        pass
    return DataError(f"{path} cannot be read: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _Row:
    """Text of a row of a Parquet file."""

    def __init__(self, columns: dict[str, pa.Array]):
        self._columns = columns

    def __call__(self, row: int) -> str:
        return ",".join(map(str, (_shown(column, row) for column in self._columns.values())))


def _shown(column: pa.Array, row: int) -> object:
    try:
        value = column[row].as_py()
    except UnicodeDecodeError:
        value = values.utf8(column.slice(row, 1))[0][0].as_py() if values.is_text(column.type) else "?"
    except (OverflowError, ValueError):  # a time that Python does not have
        plain = pa.types.is_temporal(column.type) and column.type.bit_width == 64
        value = column.slice(row, 1).view(pa.int64())[0].as_py() if plain else "?"
    return "" if value is None else value


def _json(piece: Piece, form: Form, columns: Sequence[str] | None, counts: Counter,
          ours: Mapping[str, str]) -> Iterator[Raw]:
    for first, lines in line_blocks(piece, form.encoding, counts):
        for start in range(0, len(lines), _ROWS):
            block = enumerate(lines[start:start + _ROWS], first + start)
            kept = [(number, line) for number, line in block if line.strip()]
            if kept:
                yield _objects(kept, columns, piece.partition, ours)


def _objects(kept: list[tuple[int, str]], columns: Sequence[str] | None,
             partition: dict[str, str | None], ours: Mapping[str, str]) -> Raw:
    """Columns of objects; a key that an object lacks has the value that a folder gives."""
    numbers, lines = zip(*kept, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about invalid escapes, one per line
        records = [_record(line) for line in lines]
    wrong = pa.array(["not a JSON object" if record is None else _wrong_value(record, ours)
                      for record in records], pa.string())
    names = list(dict.fromkeys(name for record in records if record for name in record)) \
        if columns is None else columns
    arrays = {}
    for name in names:
        entries = [(record or {}).get(name, partition.get(name)) for record in records]
        in_words = ours.get(name) == "title"
        arrays[name] = pa.array([_json_text(value, in_words) for value in entries], pa.string())
    return Raw(arrays, np.array(numbers, np.int64), lines.__getitem__, wrong)


def _wrong_value(record: dict, ours: Mapping[str, str]) -> str | None:
    """Why an object's ids or title are none."""
    for theirs, name in ours.items():
        value = _unwrapped(record.get(theirs))
        if name.endswith("_id") and isinstance(value, bool | list | dict):
            return f"{name} is {type(value).__name__}, no id"
        if name == "title" and value and isinstance(value, list | dict) and not values.as_text(value):
            return "title is an object without a name: a query can read one of its keys as title"
    return None


def _unwrapped(value: object) -> object:
    """Ids and dates as MongoDB exports them, {"$oid": ID}, also {"$date": {"$numberLong": MS}}, as values."""
    wrapped = isinstance(value, dict) and len(value) == 1 and next(iter(value)).startswith("$")
    return _unwrapped(next(iter(value.values()))) if wrapped else value


def _json_text(value: object, in_words: bool) -> str | None:
    """A value of a JSON object as text; lists and objects stay JSON, or are in words."""
    value = _unwrapped(value)
    if isinstance(value, list | dict):
        value = values.as_text(value) if in_words else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return values.paired(value) if value.strip(" ") else None
    return None if value is None else str(value).lower()


def _record(line: str) -> dict | None:
    """A line's object, with numbers as text; None if it has none. Executes no code."""
    for text in (line, _FREE_ESCAPE.sub(r"\1", line)):
        try:
            record = json.loads(text, parse_float=str, parse_int=str)
            break
        except (ValueError, RecursionError):
            pass
    else:
        record = parse_literal(line) if len(line) <= MAX_CHARACTERS else None
    return record if isinstance(record, dict) else None


def parse_literal(line: str) -> object:
    """The value of a Python literal, as some data sets have instead of JSON; None for anything else."""
    try:
        return ast.literal_eval(line.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
