"""Reads pieces of files as raw batches, in one process or in a Spark task.

A piece is a file, or a part of a large one. A raw batch has columns of the file, as it has them, and for each
row where it stands (``Place``), so that a rejected row can be named and shown.
"""

import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dare_job.errors import DataError
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_MAGIC = {b"ORC": "ORC", b"ARROW1": "Feather (Arrow)", b"Obj\x01": "Avro", b"\xfd7zXZ": "compressed with xz",
          b"7z\xbc\xaf": "7z", b"Rar!": "RAR", b"PK\x03\x04": "zip or Excel", b"SQLite format 3": "SQLite",
          b"\x89HDF": "HDF5"}  # first bytes of files that are not read
_NOT_TEXT = re.compile(rb"[\0-\x08\x0e-\x1f]")
_PACKED = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst", b"\x04\x22\x4d\x18": ".lz4"}
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
RAW_CHARACTERS = 200
_PIECE_BYTES = 128 << 20
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Piece:
    """Part of a file that one task reads.

    Attributes
    ----------
    start, end
        Row groups of a Parquet file, or bytes of a text file; end 0: to the end.
    before
        Rows or lines before the part.
    size
        Stored bytes, about.
    partition
        Columns that names of folders give, such as genre=Drama.
    """

    file: str
    start: int = 0
    end: int = 0
    before: int = 0
    size: int = 0
    partition: dict[str, str | None] = field(default_factory=dict)

    @property
    def path(self) -> AnyPath:
        return paths.path(self.file)


@dataclass(frozen=True)
class Form:
    """How files of a table are read.

    Attributes
    ----------
    kind
        parquet, delimited or json.
    separator, header, quotes
        Of delimited files: what separates fields; their names where the file has no line with them; how
        quotes in fields are written (doubled, escaped with a backslash, or none: quotes are text).
    spaced
        Quotes may follow a separator and a blank.
    """

    kind: str
    separator: str = ","
    header: tuple[str, ...] | None = None
    quotes: str = "doubled"
    encoding: str | None = None
    spaced: bool = False


@dataclass(frozen=True)
class Raw:
    """Rows of a piece.

    Attributes
    ----------
    columns
        Arrays of N values by name.
    lines : int64 (N,)
        Line or row of the file, from 1.
    raw
        The text of row n, for the rejects.
    problems : string (N,)
        Why a row could not be split into columns; null where it could.
    """

    columns: dict[str, pa.Array]
    lines: np.ndarray
    raw: Callable[[int], str]
    problems: pa.Array

    def __len__(self) -> int:
        return len(self.lines)


@contextmanager
def opened(file: AnyPath) -> Iterator:
    """A file's unpacked bytes.

    Raises
    ------
    DataError
        They cannot be read.
    """
    kind = COMPRESSED.get(file.suffix.lower())
    try:
        with file.open("rb") as stored:
            if kind == "gzip":
                with gzip.open(stored) as stream:
                    yield stream
            elif kind:
                with pa.input_stream(pa.PythonFile(stored, "r"), compression=kind) as stream:
                    yield stream
            else:
                yield stored
    except (EOFError, gzip.BadGzipFile, pa.ArrowException) as error:
        raise DataError(f"{file} is damaged: {error}") from error
    except OSError as error:
        if error.errno is None or kind:
            raise DataError(f"{file} is damaged: {error}") from error
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error


def bare_suffix(file: AnyPath) -> str:
    """The suffix without that of the compression, in lower case."""
    name = file.name.lower()
    for compressed in COMPRESSED:
        name = name.removesuffix(compressed)
    return "." + name.rpartition(".")[2].lower() if "." in name else ""


def first_bytes(file: AnyPath, size: int = 1 << 16) -> bytes:
    """The unpacked start of a file.

    Raises
    ------
    DataError
        It cannot be read.
    """
    with opened(file) as stream:
        return stream.read(size)


def other_format(start: bytes) -> str | None:
    """What a file is that cannot be read, and what to do, by its first bytes; None if it is unknown."""
    if not _NOT_TEXT.search(start[:1000]):  # text may begin with a column ORCID
        return None
    suffix = next((suffix for mark, suffix in _PACKED.items() if start.startswith(mark)), None)
    if suffix:
        return f"compressed with {COMPRESSED[suffix]}, but its name does not end with {suffix}: rename it"
    name = next((name for mark, name in _MAGIC.items() if start.startswith(mark)), None)
    return name and f"{name}, which is not read: convert it to Parquet or CSV"


def line_blocks(piece: Piece, encoding: str | None, counts: Counter | None = None
                ) -> Iterator[tuple[int, list[str]]]:
    """Blocks of the lines of a text file, each with the number of its first line.

    A line that is not UTF-8 is read as cp1252 if no encoding is set.

    Parameters
    ----------
    counts
        Its ``odd`` grows by such lines, or by those that are not of the encoding.
    """
    path, before = piece.path, piece.before
    mark = "\ufeff" if piece.start == 0 else None
    for data in _whole_lines(path, piece):
        text, count = _decoded(data, encoding)
        if counts is not None:
            counts["odd"] += count
        text = text.replace("\r\n", "\n")
        lines = (text if "\n" in text else text.replace("\r", "\n")).split("\n")
        if lines[-1] == "":
            lines.pop()
        if mark and lines:
            lines[0], mark = lines[0].removeprefix(mark), None
        yield before + 1, lines
        before += len(lines)


def _whole_lines(path: AnyPath, piece: Piece) -> Iterator[bytes]:
    with opened(path) as stream:
        if piece.start:
            stream.seek(piece.start)
        left, rest = (piece.end - piece.start if piece.end else None), b""
        while left != 0 and (block := stream.read(_BLOCK_BYTES if left is None else min(left, _BLOCK_BYTES))):
            left = None if left is None else left - len(block)
            cut = block.rfind(b"\n") + 1
            if not cut:
                rest += block
                continue
            yield rest + block[:cut]
            rest = block[cut:]
        if rest:
            yield rest


def _decoded(data: bytes, encoding: str | None) -> tuple[str, int]:
    """Text, and how many of its lines are not of the encoding."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError("the file is UTF-16, which is not supported: convert it to UTF-8")
    try:
        return data.decode(encoding or "utf-8"), 0
    except UnicodeDecodeError:
        lines = [_decoded_line(line, encoding) for line in data.split(b"\n")]
        return "\n".join(line for line, _ in lines), sum(odd for _, odd in lines)


def _decoded_line(line: bytes, encoding: str | None) -> tuple[str, bool]:
    try:
        return line.decode(encoding or "utf-8"), False
    except UnicodeDecodeError:
        return line.decode(encoding or "cp1252", "replace"), True


def readable(name: str) -> str:
    """The name of a file as text, which is read as a line is."""
    return _decoded_line(name.encode("utf-8", "surrogateescape"), None)[0]


def text_pieces(file: AnyPath, partition: dict, quotes: bool) -> list[Piece]:
    """Pieces of a text file: parts of about 128 MB of a large file on a disk, else the file.

    A file with quotes is not divided, since a quoted field may contain line breaks.
    """
    size = file.stat().st_size
    whole = [Piece(str(file), size=size, partition=partition)]
    if not paths.is_local(file) or file.suffix.lower() in COMPRESSED or size < 2 * _PIECE_BYTES:
        return whole
    pieces, start, lines, before = [], 0, 0, 0
    with open(file, "rb") as stream:
        position = 0
        while block := stream.read(_BLOCK_BYTES):
            if quotes and b'"' in block:
                return whole
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
            lines, position = lines + len(ends), position + len(block)
            if position - start >= _PIECE_BYTES and len(ends):
                end = position - len(block) + int(ends[-1]) + 1
                pieces.append(Piece(str(file), start, end, before, end - start, partition))
                start, before = end, lines
    return [*pieces, Piece(str(file), start, 0, before, position - start, partition)]
