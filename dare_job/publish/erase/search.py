"""Searches all files of an output folder for entities. The proof of an erasure."""

import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.errors import DataError
from dare_job.publish.erase import mentions, tables
from dare_job.publish.erase.mentions import Mentions
from dare_job.publish.erase.subjects import STATE, Subjects
from dare_job.storage import lock
from dare_job.tables import published

_DAMAGED = (OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Hit:
    """A file that mentions an entity. ``what`` does not repeat the id or text."""

    path: Path
    what: str


@dataclass
class Searched:
    """What a search has read."""

    files: int = 0
    tables: int = 0
    rows: int = 0
    bytes: int = 0


def files_below(out: Path) -> list[Path]:
    """All files, each once, hidden ones as well, except locks and the state of the erasure.

    Links to folders are followed.

    Raises
    ------
    DataError
        A folder cannot be read, or a link leads to a file elsewhere or to nothing.
    """
    files, links, searched, waiting = [], [], set(), [out]
    while waiting:
        for folder, below, names in os.walk(waiting.pop(), onerror=_unreadable):
            if (real := os.path.realpath(folder)) in searched:
                below.clear()
                continue
            searched.add(real)
            waiting += filter(Path.is_symlink, (Path(folder, name) for name in below))
            for path in (Path(folder, name) for name in names):
                if path.is_symlink():
                    links.append(path)
                elif not path.name.startswith(lock.NAME) and path != out / "_work" / STATE:
                    files.append(path)
    for link in links:
        if os.path.dirname(os.path.realpath(link)) not in searched:
            raise DataError(f"{link} is a link to {os.readlink(link)}, which is not a folder that exists; "
                            "only links to folders are followed. Mount what it leads to, put the file in its "
                            "place, or remove the link")
    return sorted(files)


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be read ({error.strerror}), so the search cannot prove that "
                    "it contains none of the ids: make it readable and run the command again") from error


def entity_beside(out: Path, path: Path) -> str | None:
    """Entity type of a file's rows, from its path and the manifest in its folder."""
    place = path.relative_to(out).as_posix()
    return tables.entity_of(place) or tables.entity_of(place, published.read_manifest(path.parent))


class Search:
    """A search of all files of a folder.

    ``searched`` counts what it has read so far; ``owners`` are the entities whose rows it has met.
    """

    def __init__(self, out: Path, subjects: Subjects):
        self.out, self._subjects, self.searched = out, subjects, Searched()
        self.owners: set[str] = set()
        self.mentions = Mentions(subjects)

    def hits(self) -> Iterator[Hit]:
        """The files that mention an entity, in order of their names."""
        for path in files_below(self.out):
            size = path.stat().st_size
            table = tables.is_table(path)
            what = self._table(path, entity_beside(self.out, path)) if table else self._file(path)
            self.searched.files += 1
            self.searched.bytes += size
            if what is None and self.mentions.find(path.relative_to(self.out).as_posix().encode()):
                what = "its name has an id"
            if what:
                yield Hit(path, what)

    def _table(self, path: Path | pa.Buffer, entity: str | None) -> str | None:
        """What a Parquet file, or its content, mentions."""
        source = path if isinstance(path, Path) else pa.BufferReader(path)
        rows, what = 0, None
        try:
            with pq.ParquetFile(source) as file:
                schema = file.schema_arrow
                columns = [field.name for field in schema
                           if field.name in tables.ID_COLUMNS or _has_strings(field.type)]
                for batch in file.iter_batches(tables.BATCH, columns=columns or None):
                    rows += batch.num_rows
                    self.owners |= tables.owners(batch, entity, self._subjects)
                    what = what or self._rows(batch, entity, bool(tables.id_columns(schema)))
        except (pa.ArrowException, OSError) as error:
            return f"it cannot be read as Parquet ({str(error).partition(chr(10))[0]})"
        self.searched.tables += 1
        self.searched.rows += rows
        return what

    def _rows(self, batch: pa.RecordBatch, entity: str | None, has_owner: bool) -> str | None:
        mine = tables.owned(batch, entity, self._subjects)
        if count := pc.sum(mine).as_py():
            return f"{count} rows" if count > 1 else "a row"
        own_ids = pa.array(sorted(filter(mentions.is_distinctive, self._subjects.every_id)), pa.string())
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            known = tables.ID_COLUMNS
            for values in _strings(column):
                if pc.any(pc.is_in(values, value_set=self._subjects.contents)).as_py():
                    return f"a text in the column {name}"
                if name not in known and pc.any(pc.is_in(values, value_set=own_ids)).as_py():
                    return f"an id in the column {name}"
                if not has_owner and self._contains(values):
                    return f"a text in the column {name}"
        return None

    def _contains(self, values: pa.Array) -> bool:
        """Whether a string contains a text. Slow with many texts, so only for tables without ids."""
        return any(pc.any(pc.match_substring(values, text)).as_py()
                   for text in self._subjects.texts if len(text) >= mentions.SHORTEST_TEXT)

    def _file(self, path: Path) -> str | None:
        with mentions.mapped(path) as content:
            try:
                return self._content(path, content)
            except _DAMAGED as error:
                return f"it cannot be unpacked ({error})"

    def _content(self, path: Path, content) -> str | None:
        if what := self.mentions.find(content):
            return what
        if path.suffix == ".json" and mentions.mentions_in_json(
                content[:], self.mentions, entity_beside(self.out, path)):
            return "an id"
        return next(filter(None, (self._member(*member) for member in mentions.archived(content))), None)

    def _member(self, name: str, content: bytes) -> str | None:
        """What a file inside an archive mentions; archives inside of archives are unpacked as well."""
        table = self._table(pa.py_buffer(content), None) if content.startswith(tables.MAGIC) else None
        if what := table or self.mentions.find(content) or self.mentions.find(name.encode()):
            return f"{what}, inside the archive"
        return next(filter(None, (self._member(*member) for member in mentions.archived(content))), None)


def _has_strings(kind: pa.DataType) -> bool:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return True
    if pa.types.is_dictionary(kind):
        return _has_strings(kind.value_type)
    return any(_has_strings(kind.field(at).type) for at in range(kind.num_fields))


def _strings(column: pa.Array) -> Iterator[pa.Array]:
    """The strings of a column, also those in lists, maps and structures."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield column.cast(pa.string())
    elif pa.types.is_map(kind):
        yield from _strings(column.keys)
        yield from _strings(column.items)
    elif pa.types.is_struct(kind):
        for below in column.flatten():
            yield from _strings(below)
    elif pa.types.is_nested(kind):
        yield from _strings(column.flatten())


def texts_of(out: Path, subjects: Subjects) -> set[str]:
    """The texts and prompts in rows of the entities that no row of another entity has."""
    texts: set[str] = set()
    for path, column, entity in _texts(out):
        for batch in tables.batches(path, [*tables.id_columns(pq.read_schema(path)), column]):
            mine = batch.filter(tables.owned(batch, entity, subjects))
            texts.update(mine[column].drop_null().to_pylist())
    texts.discard("")
    for path, column, entity in _texts(out) if texts else ():
        known = pa.array(sorted(texts), pa.string())
        for batch in tables.batches(path, [*tables.id_columns(pq.read_schema(path)), column]):
            same = batch.filter(pc.is_in(batch[column], value_set=known))
            others = same.filter(pc.invert(tables.owned(same, entity, subjects)))
            texts.difference_update(others[column].to_pylist())
    return texts


def _texts(out: Path) -> Iterator[tuple[Path, str, str | None]]:
    """Each column of texts or prompts of entities: its file, its name, and the file's entity type."""
    for path in filter(tables.is_table, files_below(out)):
        try:
            names = pq.read_schema(path).names
        except (pa.ArrowException, OSError):
            continue  # the search names it
        for column in ("knowledge", "prompt"):
            if column in names and "entity_id" in names:
                yield path, column, entity_beside(out, path)
