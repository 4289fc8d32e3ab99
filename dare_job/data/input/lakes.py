"""Tables of Delta and Iceberg, read through their own libraries, which know the files that count.

A folder of such a table also holds files with deleted and replaced rows; its log says which files count. The
files of a Delta table are then read like any others. The needed columns of an Iceberg table are copied, since
its files may have other column names than the table and rows that were deleted.
"""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import unquote

from dare_job.data.input import files, formats
from dare_job.data.input.formats import FileInfo
from dare_job.data.input.scan import Form
from dare_job.errors import ConfigError, DataError, install_hint
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_PARQUET = Form("parquet")
_CAUSE_CHARACTERS = 500


def lake_files(name: str, path: AnyPath, kind: str, into: AnyPath | None,
               needed: Callable[[FileInfo], list[str]]) -> tuple[FileInfo, ...]:
    """The files of a table of Delta or Iceberg.

    Parameters
    ----------
    into
        Folder for a copy of an Iceberg table. None: its log is returned in place of the copy.
    needed
        Which columns of a table are copied.

    Raises
    ------
    ConfigError
        The library is not installed.
    DataError
        The table is of Hudi, is damaged, or uses what the library does not read.
    """
    if kind == "hudi":
        raise DataError(f"{path} is a Hudi table, which dare-job does not read: read it through Spark "
                        f"with input.tables.{name}.query, or export it to Parquet")
    try:
        return _delta(path) if kind == "delta" else _iceberg(
            path, into and into / f"{name}.parquet", needed)
    except ImportError as error:
        raise ConfigError(f"{path} is {files.table_of(kind)}, which needs the package {error.name}: "
                          f"{install_hint(kind)}") from None
    except (ConfigError, DataError):
        raise
    except Exception as error:  # the libraries have no common class of errors
        cause = " ".join(str(error).split())[:_CAUSE_CHARACTERS]  # also what follows its first line
        raise DataError(f"{path} cannot be read as {files.table_of(kind)}: {type(error).__name__}: "
                        f"{cause}") from error


def _delta(path: AnyPath) -> tuple[FileInfo, ...]:
    from deltalake import DeltaTable

    table = DeltaTable(str(path))
    features = set(table.protocol().reader_features or ())
    if table.protocol().min_reader_version == 2 or features & {"deletionVectors", "columnMapping"}:
        raise DataError(f"{path}: this Delta table has deletion vectors or renamed columns, which only "
                        f"Spark with "
                        "Delta reads: use a query, or rewrite it (REORG TABLE ... APPLY (PURGE))")
    actions = table.get_add_actions(flatten=True)
    rows = (actions if hasattr(actions, "to_pylist") else _arrow(actions)).to_pylist()
    data_files = []
    for row in sorted(rows, key=lambda row: row["path"]):
        partition = {key.removeprefix("partition."): None if value is None else str(value)
                     for key, value in row.items() if key.startswith("partition.")}
        data_files.append(formats.open_file(path / unquote(row["path"]), _PARQUET, partition))
    return tuple(data_files) or (_empty(path, [field.name for field in table.schema().fields]),)


def _arrow(table):
    import pyarrow as pa

    return pa.table(table)


def _empty(path: AnyPath, names: list[str]) -> FileInfo:
    return FileInfo(path, _PARQUET, dict.fromkeys(names), ())


def _iceberg(path: AnyPath, copy: AnyPath | None, needed: Callable[[FileInfo], list[str]]
             ) -> tuple[FileInfo, ...]:
    import pyarrow.parquet as pq
    from pyiceberg.table import StaticTable

    hint = path / "metadata" / "version-hint.text"
    logs = sorted((path / "metadata").glob("*.metadata.json"), key=_version)
    newest = next((log for log in logs if hint.exists() and log.name in _hinted(hint)), logs[-1])
    if copy is None:
        return (FileInfo(newest, _PARQUET, {}, ()),)
    table = StaticTable.from_metadata(str(newest))
    if not _lies_at(path, table.location()):
        raise DataError(f"{path}: this Iceberg table was copied or moved from {table.location()}, and its "
                        "log names the files there: read it there, or let Iceberg's procedure "
                        "rewrite_table_path make the copy")
    schema = table.schema().as_arrow()
    whole = FileInfo(path, _PARQUET, dict(zip(schema.names, schema.types, strict=True)), ())
    names = needed(whole)
    if not names:
        return (whole,)  # Table.check names the columns that are missing
    rows = table.scan(selected_fields=tuple(names)).to_arrow_batch_reader()
    paths.make_folder(copy.parent)
    with paths.arrow_sink(copy) as sink, pq.ParquetWriter(sink, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
    return (replace(whole, pieces=formats.open_file(copy, _PARQUET, {}).pieces),)


def _lies_at(path: AnyPath, location: str) -> bool:
    """Whether an Iceberg table's own location is where it was found."""
    if not paths.is_local(path):
        return location.rstrip("/").endswith(path.path.strip("/"))
    named = re.sub("^file:/*", "/", location)
    return os.path.realpath(path) in (os.path.realpath(named), os.path.realpath(unquote(named)))


def _hinted(hint: AnyPath) -> tuple[str, ...]:
    version = hint.read_text().strip()
    return (f"v{version}.metadata.json", f"{version}.metadata.json", version)


def _version(log: AnyPath) -> tuple[int, str]:
    """v3.metadata.json and 00003-UUID.metadata.json are of version 3."""
    digits = log.name.lstrip("v").partition(".")[0].partition("-")[0]
    return (int(digits) if digits.isdigit() else -1, log.name)
