"""The tables of an input: which they are, and what reads them."""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dare_job.config.settings import InputSettings
from dare_job.config.tables import InputTables, InteractionSettings, TableSettings
from dare_job.data.input import amazon, column_checks, files, formats, known_sets, lakes, movielens
from dare_job.data.input.archive import unpack
from dare_job.data.input.derive import FUNCTIONS
from dare_job.data.input.formats import FileInfo
from dare_job.data.input.table import CONTRACT, Table
from dare_job.errors import ConfigError, DataError
from dare_job.storage import errors, paths
from dare_job.storage.paths import AnyPath

_LOG = logging.getLogger("dare_job")
_USUAL = "parquet"  # name of the format of tables with the usual names, whatever their files are
_REQUIRED = {"user_id", "item_id", "timestamp"}  # columns of interactions
_FORMATS = {"csv": "csv", "tsv": "tsv", "json": "json", "parquet": "parquet", "auto": None}


def formats_of_input() -> list[str]:
    """Valid values of ``input.format``."""
    return ["auto", _USUAL, "movielens", "amazon", "recbole", *known_sets.known_sets()]


@dataclass(frozen=True)
class InputSource:
    """The tables of an input; ``form`` is the name of the format that was recognized."""

    form: str
    tables: dict[str, Table]

    def identity(self) -> list[list]:
        """[name, bytes, modification time in ns or version] of each file, for a fingerprint."""
        entries = [(file.name, file.path) for table in self.tables.values() for file in table.files]
        entries += [(f"ids of {name}: {ids.path}", paths.path(ids.path))
                    for name, table in self.tables.items() for ids in table.settings.ids.values()]
        versions = paths.file_versions(path for _, path in entries)
        return sorted([name, *version] for (name, _), (_, *version) in zip(entries, versions, strict=True))


@dataclass(frozen=True)
class _Places:
    """Where tables are: the input's folder or file, a folder for copies, and results of queries by table."""

    root: AnyPath | None
    into: AnyPath | None  # None: neither is needed, only which files there are
    queries: Mapping[str, AnyPath]


@contextmanager
def opened(settings: InputSettings, into: AnyPath, queries: Mapping[str, AnyPath] | None = None
           ) -> Iterator[InputSource]:
    """The tables of ``settings``.

    Parameters
    ----------
    into
        Folder for copies of what cannot be read in its place, which are removed after the block.
    queries
        Folders with the results of queries, by table.

    Raises
    ------
    DataError
        A path does not exist, its format is unknown, or a column is missing.
    """
    root = input_root(settings)
    copies = into / ".copies"
    paths.make_folder(into)
    try:
        folder = unpack(root, copies / "archive", detected) if root else None
        source = _source(settings, _Places(folder, copies, queries or {}))
        for table in source.tables.values():
            column_checks.check(table)
        yield source
    finally:
        paths.remove_tree(copies)


def input_identity(settings: InputSettings) -> list[list]:
    """[name, bytes, modification time in ns or version] of each input file, for a fingerprint.

    Raises
    ------
    DataError
        As ``opened``.
    """
    root = input_root(settings)
    if root is not None:
        errors.check_access(root, "input.path")
    if root is not None and root.is_file():
        return [[root.name, *version] for _, *version in paths.file_versions([root])]
    return _source(settings, _Places(root, None, {})).identity()


def input_root(settings: InputSettings) -> AnyPath | None:
    """``input.path``, which must exist; None if every table has a path or query of its own.

    Raises
    ------
    DataError
        It is missing.
    """
    if not settings.path:
        if settings.tables.interactions.path or settings.tables.interactions.query:
            return None
        raise DataError("input.path is not set: set it to a folder or file with interactions (--input PATH)")
    path = paths.path(settings.path, "input.path")
    if not path.exists():
        raise DataError(f"input.path = {path}: no such file or folder")
    return path.absolute()  # executors have another working directory


def _source(settings: InputSettings, places: _Places) -> InputSource:
    inside = replace(places, root=places.root and files.single_subfolder(places.root))
    source = _recognized(settings, places, inside)
    return InputSource(source.form, {name: replace(table, settings=_with_places(table, places, inside))
                                     for name, table in source.tables.items()})


def _with_places(table: Table, places: _Places, inside: _Places) -> TableSettings:
    """Settings of a table with the places of its files that translate ids."""
    located = {}
    for column, ids in table.settings.ids.items():
        paths_of = [files.locate(each.root or Path.cwd(), ids.path).absolute() for each in (places, inside)]
        path = next((path for path in paths_of if path.exists()), None)
        if path is None:
            raise DataError(f"{table.key}.ids.{column}.path = {ids.path}: {paths_of[0]} does not exist")
        located[column] = ids.model_copy(update={"path": str(path)})
    return table.settings.model_copy(update={"ids": located})


def _recognized(settings: InputSettings, places: _Places, inside: _Places) -> InputSource:
    own, events = settings.tables.set_tables(), settings.tables.interactions
    placed = events.path or events.query  # a recognized set may have none of these interactions
    form = settings.format if settings.format != "auto" else None if placed else detected(inside.root)
    if form is None and "interactions" in own:
        beside = _named_tables(inside, {}, [name for name in CONTRACT if name not in own])
        return InputSource("tables", beside | mapped_tables(own, places))
    if form is None:
        raise DataError(f"input.path = {settings.path}: no format is recognized ({_listed(inside.root)}). "
                        f"Expected: a "
                        "table interactions (Parquet, CSV, JSON lines), or one of the public data sets of "
                        "docs/how-to/input-tables.md; for other tables set input.tables: `dare-job data "
                        "inspect --input "
                        f"{settings.path}` proposes it")
    return InputSource(form, _replaced(_tables(form, inside, own), own, inside))


def _listed(folder: AnyPath) -> str:
    if folder.is_file():
        return f"it is the file {folder.name}"
    names = sorted(entry.name for entry in folder.iterdir() if not files.hidden(entry.name))
    return f"it has {', '.join(names[:10])}{' and others' if len(names) > 10 else ''}" if names else \
        "it is empty"


def detected(folder: AnyPath) -> str | None:
    """Name of the format of a folder or file; None if it is not recognized."""
    if folder.is_file():
        if amazon.is_amazon(folder):
            return "amazon"
        return _USUAL if formats.first_bytes(folder, 4) == b"PAR1" or _has_our_columns(folder) else None
    if files.lake_format(folder) or files.named_table(folder, "interactions") is not None:
        return _USUAL
    known = next((name for name, each in known_sets.known_sets().items() if each.fits(folder)), None)
    if known is not None:
        return known
    if movielens.is_movielens(folder):
        return "movielens"
    if known_sets.is_recbole(folder):
        return "recbole"
    return "amazon" if amazon.is_amazon(folder) else None


def _has_our_columns(file: AnyPath) -> bool:
    try:
        return set(formats.text_columns(file, formats.detect(file))).issuperset(_REQUIRED)
    except DataError:
        return False


def _tables(form: str, places: _Places, own: Mapping[str, TableSettings]) -> dict[str, Table]:
    folder = places.root
    if form == _USUAL:
        return _usual_tables(places, own)
    if form in ("movielens", "amazon"):
        return {"movielens": movielens, "amazon": amazon}[form].tables(folder)
    if form == "recbole":
        return known_sets.recbole_tables(folder)
    sets = known_sets.known_sets()
    if form not in sets:
        raise ConfigError(f"input.format = {form!r}; valid choices: {', '.join(formats_of_input())}")
    known = sets[form]
    present = _present(known.tables.set_tables(), folder)
    tables = mapped_tables({name: _merged(table, own.get(name)) for name, table in present.items()}, places)
    return {name: replace(table, derive=FUNCTIONS[known.derive[name]])
            if name in known.derive else table for name, table in tables.items()}


def _present(tables: Mapping[str, TableSettings], folder: AnyPath) -> dict[str, TableSettings]:
    """Without tables whose file this copy of the data set lacks."""
    return {name: table for name, table in tables.items()
            if name == "interactions" or next(known_sets.matches(folder, table.path), None)}


def _usual_tables(places: _Places, own: Mapping[str, TableSettings]) -> dict[str, Table]:
    folder = places.root
    if folder.is_file():
        settings = _merged(InteractionSettings(), own.get("interactions"))
        return {"interactions": Table("interactions", settings, _files(settings, [(folder, {})]))}
    if files.lake_format(folder):
        return {"interactions": _table("interactions", _merged(InteractionSettings(),
                                                               own.get("interactions")),
                                       folder, places)}
    tables = _named_tables(places, own, CONTRACT)
    if "interactions" not in tables:
        raise DataError(f"{folder} has no interactions.parquet (a file or a folder of Parquet files)")
    return tables


def _named_tables(places: _Places, own: Mapping[str, TableSettings], names: Iterable[str]
                  ) -> dict[str, Table]:
    """Those tables that the folder has under their usual names."""
    folder = places.root
    entries = {name: files.named_table(folder, name) for name in names} if folder and folder.is_dir() else {}
    for name, path in entries.items():
        if path is not None and (others := files.named_alike(folder, name)):
            _LOG.warning("%s: only %s is read, not %s; a pattern names several files: "
                         "input.tables.%s.path='%s*%s'", folder, path.name, ", ".join(others), name, name,
                         path.suffix)
    return {name: _table(name, _merged(getattr(InputTables(), name), own.get(name)), path, places)
            for name, path in entries.items() if path is not None}


def _merged(settings: TableSettings, own: TableSettings | None) -> TableSettings:
    """Settings with those that ``own`` sets in their place; columns that it does not name stay."""
    if own is None or own.path is not None or own.query is not None:
        return settings
    return settings.model_copy(update={**own.own, "columns": settings.columns | own.columns})


def _replaced(tables: dict[str, Table], own: Mapping[str, TableSettings], places: _Places
              ) -> dict[str, Table]:
    """Tables of a recognized format, with what ``input.tables`` says of them instead."""
    for name, settings in own.items():
        if settings.path is None and settings.query is None and name in tables:
            tables[name] = replace(tables[name], settings=_merged(tables[name].settings, settings))
        else:
            tables[name] = _mapped(name, settings, places)
    return tables


def mapped_tables(tables: Mapping[str, TableSettings], places: _Places) -> dict[str, Table]:
    """Tables by ``input.tables``; paths are relative to the input's folder."""
    return {name: _mapped(name, table, places) for name, table in tables.items()}


def _mapped(name: str, table: TableSettings, places: _Places) -> Table:
    folder = places.root or Path.cwd()
    if table.query:
        query_files = files.files_below(places.queries[name]) if name in places.queries else []
        return Table(name, table, _files(table, query_files))
    if table.path is not None or not folder.is_dir():
        path = files.locate(folder, table.path)
        if files.lake_format(path) is None and table.format not in ("delta", "iceberg"):
            return Table(name, table, _files(table, files.find(folder, table.path,
                                                               f"input.tables.{name}.path")))
        return _table(name, table, path, places)
    usual = files.named_table(folder, name)
    if usual is None:
        raise DataError(f"input.tables.{name}.path is not set, and {folder} has no {name}.parquet or .csv")
    return _table(name, table, usual, places)


def _table(name: str, settings: TableSettings, path: AnyPath, places: _Places) -> Table:
    """A table at a path."""
    lake = settings.format if settings.format in ("delta", "iceberg") else files.lake_format(path)
    if lake:
        return Table(name, settings, lakes.lake_files(
            name, path, lake, places.into, lambda info: Table(name, settings, (info,)).needed()))
    return Table(name, settings, _files(settings, files.find(path, None, f"input.tables.{name}.path")))


def _files(settings: TableSettings, entries: list[files.TableFile]) -> tuple[FileInfo, ...]:
    """The files, by path in natural order, and a file that a link repeats once.

    Empty ones among others are left out, with a warning.
    """
    def info(each: files.TableFile) -> FileInfo:
        file, partition = each
        form = formats.detect(file, settings.separator, settings.header, settings.quotes, settings.encoding,
                              _FORMATS.get(settings.format))
        return formats.open_file(file, form, partition)

    different: dict[tuple, files.TableFile] = {}
    for each in sorted(entries, key=_natural):
        different.setdefault(_identity(each), each)
    opened_files = list(map(info, different.values()))
    empty = [file.path for file in opened_files if not file.types and file.path.suffix != ".parquet"
             and formats.is_blank(file.path)]
    if empty and len(empty) < len(opened_files):
        _LOG.warning("skipped empty files, which have not even a header: %s",
                     ", ".join(map(str, empty)))
        return tuple(file for file in opened_files if file.path not in empty)
    return tuple(opened_files)


def _identity(entry: files.TableFile) -> tuple:
    """Equal for a file and links to it that have the same columns of folders."""
    file, partition = entry
    return (os.path.realpath(file) if paths.is_local(file) else str(file), *partition.items())


def _natural(entry: files.TableFile) -> list[str | int]:
    """A key that sorts part-9 before part-10: text and numbers in turn."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split("([0-9]+)", str(entry[0])))]


def tables_of_pair(reviews: AnyPath, metadata: AnyPath) -> InputSource:
    """A file of Amazon reviews and one of metadata.

    Raises
    ------
    DataError
        A file has other content.
    """
    return InputSource("amazon", amazon.pair(reviews, metadata))
