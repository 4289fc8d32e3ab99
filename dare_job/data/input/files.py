"""Finds the files of a table, with what the names of folders say.

Hidden files and folders, whose names begin with ``.`` or ``_``, are not part of a table: other programs keep
temporary and deleted rows there. Links are followed. A folder ``genre=Drama`` gives its files a column, also
where the path or pattern of a table names it; folders of ``input.path`` itself give none.
"""

import logging
import os
from pathlib import Path
from urllib.parse import unquote

from dare_job.data.input.scan import COMPRESSED, bare_suffix, first_bytes, other_format, readable
from dare_job.errors import DataError
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_LOG = logging.getLogger("dare_job")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".psv", ".txt", ".dat", ".json", ".jsonl", ".ndjson", ".inter",
                 ".user", ".item")
_LAKES = {"_delta_log": "delta", ".hoodie": "hudi"}
_ICEBERG_LOG = ".metadata.json"  # end of the names of files in a folder metadata
_LEVELS = 4  # of folders above a file that may be a table
TableFile = tuple[AnyPath, dict[str, str | None]]  # a file, and columns that names of folders give


def find(root: AnyPath, text: str | None, key: str) -> list[TableFile]:
    """The files of a table, by name.

    Parameters
    ----------
    text
        File, folder or pattern, relative to ``root``, or an absolute path or URL. None: ``root``.
    key
        Setting that holds ``text``, for messages.

    Raises
    ------
    DataError
        There is no such file.
    """
    path = locate(root, text)
    text = text and os.path.expanduser(text)
    _refuse_part_of_lake(path, key)
    if text and any(mark in text for mark in "*?[") and not path.exists():
        return _matches(root, text, key)
    if not path.exists():
        entries = root.iterdir() if root.is_dir() else ()
        beside = sorted(entry.name for entry in entries if not hidden(entry.name))
        note = f" (found: {', '.join(beside)})" if beside else ""
        raise DataError(f"{key} = {text}: {path} does not exist{note}")
    files = _files_of(path, text or "")
    if not files:
        names = _names(path)
        if names and (other := other_format(first_bytes(path / names[0], 100))):
            raise DataError(f"{path} has no file that can be read: {names[0]} is {other}")
        such = f": {', '.join(names[:5])} have no known suffix, such as .csv. If they are text, name them " \
            f"by a pattern: {key} = {path}/*" if names else ""
        raise DataError(f"{path} has no file that can be read{such}")
    return files


def locate(root: AnyPath, text: str | None) -> AnyPath:
    """The path of a table."""
    if not text:
        return root
    text = os.path.expanduser(text)
    return paths.path(text) if "://" in text or os.path.isabs(text) else root / text


def _matches(root: AnyPath, text: str, key: str) -> list[TableFile]:
    if "://" in text:
        raise DataError(f"{key} = {text}: a pattern at a URL must be relative to input.path")
    anchor = Path(text).anchor
    base = Path(anchor) if anchor else root
    matched = sorted(base.glob(text[len(anchor):]), key=str)
    fixed = str(base / _before_wildcard(text[len(anchor):]))
    names = [path for path in matched if not any(map(hidden, str(path)[len(fixed):].strip("/").split("/")))]
    for path in names:
        _refuse_part_of_lake(path, key)
    outside = 0 if anchor else len(str(root))
    files = [file for path in names for file in _files_of(path, str(path)[outside:])]
    if not files:
        raise DataError(f"{key} = {text}: no file matches")
    return files


def _files_of(path: AnyPath, name: str) -> list[TableFile]:
    """A file, or the data files of a folder, with the columns that the folders in its ``name`` give."""
    if not path.is_dir():
        return [(path, _partition(name))]
    partition = _partition(f"{name}/")
    return [(file, partition | columns) for file, columns in files_below(path)]


def _before_wildcard(pattern: str) -> str:
    """The folders of a pattern before the first one with a wildcard."""
    parts = pattern.split("/")
    first = next(at for at, part in enumerate(parts) if any(mark in part for mark in "*?["))
    return "/".join(parts[:first])


def _refuse_part_of_lake(path: AnyPath, key: str) -> None:
    """Refuse files of a table of Delta, Iceberg or Hudi: only its log says which of them count."""
    for folder in list(path.parents)[:_LEVELS]:
        if kind := lake_format(folder):
            raise DataError(f"{path} is part of {table_of(kind)}: name the table's folder, "
                            f"{key} = {folder}")


def hidden(name: str) -> bool:
    """Whether readers leave out a file or folder; a folder _x=1 gives a column."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def files_below(folder: AnyPath) -> list[TableFile]:
    """The data files of a folder, by name; others are named in a warning.

    Data files are Parquet files, whatever they are called, and text files with a usual suffix. Where there
    are Parquet files, only they are.
    """
    names = _names(folder)
    files = [folder / name for name in names]
    kinds = paths.map_paths(_kind, files)
    chosen = "parquet" if "parquet" in kinds else "text"
    others = [name for name, kind in zip(names, kinds, strict=True) if kind != chosen]
    if others and len(others) < len(names):
        _LOG.warning("%s: %d files are not read, because they are not %s: %s", folder, len(others),
                     "Parquet" if chosen == "parquet" else "data", ", ".join(map(readable, others[:5])))
    return [(folder / name, _partition(name)) for name, kind in zip(names, kinds, strict=True)
            if kind == chosen]


def _names(folder: AnyPath) -> list[str]:
    """Relative names of the files below a folder, without hidden ones and links that lead back."""
    if not paths.is_local(folder):
        names = list(paths.listing(folder))
        for name in names:
            _refuse_lake_below(folder, name.split("/"))
        return [name for name in names if not any(map(hidden, name.split("/")))]
    files, seen = [], set()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        place = os.stat(parent)
        if (place.st_dev, place.st_ino) in seen:
            folders.clear()
            continue
        seen.add((place.st_dev, place.st_ino))
        inside = os.path.relpath(parent, folder)
        _refuse_lake_below(folder, [*inside.split(os.sep), *folders, *names])
        folders[:] = [name for name in folders if not hidden(name)]
        files += [os.path.relpath(os.path.join(parent, name), folder) for name in names if not hidden(name)]
    return sorted(name.replace(os.sep, "/") for name in files)


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def _refuse_lake_below(folder: AnyPath, names: list[str]) -> None:
    """Refuse a folder in which there is a log of a table, by the names of a folder and of what it has."""
    logs = [name for name in names if name.endswith(_ICEBERG_LOG) and "metadata" in names]
    for mark, kind in (_LAKES | dict.fromkeys(logs, "iceberg")).items():
        if mark in names:
            raise DataError(f"{folder} contains {table_of(kind)} ({mark}): name the table's folder in the "
                            "path of input.tables")


def _kind(file: AnyPath) -> str:
    if file.suffix.lower() == ".parquet":
        return "parquet"
    if bare_suffix(file) in TEXT_SUFFIXES:
        return "text"
    if file.suffix.lower() in COMPRESSED:
        return "text" if b"\0" not in first_bytes(file, 1000) else "other"
    if file.suffix in ("", ".parq", ".pq", ".snappy") or file.suffix[1:].isdigit():
        return "parquet" if _magic(file) else "other"
    return "other"


def _magic(file: AnyPath) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(4) == b"PAR1"
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error


def _partition(name: str) -> dict[str, str | None]:
    pairs = (part.split("=", 1) for part in readable(name).split("/")[:-1] if "=" in part)
    return {column: None if value == _NO_VALUE else unquote(value) for column, value in pairs}


def lake_format(folder: AnyPath) -> str | None:
    """delta, iceberg or hudi for a folder with such a table's log; else None."""
    if not folder.is_dir():
        return None
    for mark, kind in _LAKES.items():
        if (folder / mark).exists():
            return kind
    logs = folder / "metadata"
    return "iceberg" if logs.is_dir() and next(logs.glob(f"*{_ICEBERG_LOG}"), None) else None


def table_of(kind: str) -> str:
    """Such a table, in words."""
    return f"{'an' if kind == 'iceberg' else 'a'} {kind.capitalize()} table"


def single_subfolder(path: AnyPath) -> AnyPath:
    """Descend while a folder contains nothing but a single folder that is not a table or a partition."""
    if path.is_dir():
        entries = [entry for entry in path.iterdir() if not entry.name.startswith((".", "__"))]
        if len(entries) == 1 and entries[0].is_dir() and "=" not in entries[0].name \
                and entries[0].name.partition(".")[0] != "interactions":
            return single_subfolder(entries[0])
    return path


def named_table(folder: AnyPath, name: str) -> AnyPath | None:
    """Path of a table with its usual name: ``NAME``, ``NAME.parquet``, ``NAME.csv`` and others.

    Raises
    ------
    DataError
        There are several, such as a file and a folder of one name.
    """
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    tables = [entry for entry in entries if _is_table(entry, name)]
    if len(tables) > 1:
        raise DataError(f"{folder} has both {tables[0].name} and {tables[1].name}; say which is the table: "
                        f"input.tables.{name}.path={tables[0].name}")
    return tables[0] if tables else None


def named_alike(folder: AnyPath, name: str) -> list[str]:
    """Data files whose names begin as that of a table, such as interactions.1.csv."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith(name)
                  and bare_suffix(entry) in (".parquet", *TEXT_SUFFIXES) and not _is_table(entry, name))


def _is_table(entry: AnyPath, name: str) -> bool:
    if not entry.name.startswith(name):
        return False
    rest = entry.name.removeprefix(name)
    compressed = entry.suffix if entry.suffix.lower() in COMPRESSED else ""
    if rest.removesuffix(compressed).lower() not in ("", ".parquet", *TEXT_SUFFIXES):
        return False
    return entry.is_file() or lake_format(entry) is not None or bool(_names(entry))
