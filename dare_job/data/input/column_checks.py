"""Checks that the files of a table have the columns that its settings name; messages name the setting."""

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

import pyarrow as pa

from dare_job.data.input import formats
from dare_job.data.input.attributes import holds_attributes
from dare_job.data.input.formats import FileInfo
from dare_job.data.input.guess import column_for
from dare_job.data.input.table import COLUMNS, Table
from dare_job.errors import DataError

_OPTIONAL = ("rating",)


def check(table: Table) -> None:
    """Check that every file has the columns that the settings name.

    Raises
    ------
    DataError
        With file, column, the columns found and the setting.
    """
    _check_left_out(table)
    for file in table.files:
        if table.derive:
            _require(file, table.reads or ())
            continue
        if not file.types and file.form.kind == "json" and not formats.is_blank(file.path):
            raise DataError(f"{file.path}: none of its first lines is a JSON object. Write one object "
                            f"per line, or name its format, such as {table.key}.format=csv")
        if not file.types:
            raise DataError(f"{file.path} is empty: it has not even a header line. Remove it, or name "
                            f"the other files: {table.key}.path")
        _check_columns(table, file)


def _check_left_out(table: Table) -> None:
    """Refuse names of ``all_but`` that are no columns: what they mean to leave out would be shown.

    A key may be one of later objects only; then nothing may be written nearly like it.
    """
    for name in table.left_out() if table.columns else ():
        similar = _nearest(name, table.columns)
        if name not in table.columns and (similar or not table.may_lack_keys):
            raise DataError(f"{table.files[0].path} has no column {name}, which {table.key}.all_but leaves "
                            f"out{f'; is it {similar}?' if similar else ''} (columns found: "
                            f"{', '.join(table.columns)})")


def _check_columns(table: Table, file: FileInfo) -> None:
    """Check one file. Columns other than ids and times may be missing where another file has them."""
    path, types, columns = file.path, file.types, file.columns
    lacking = [ours for ours in COLUMNS[table.name] if (theirs := table.column(ours)) not in (None, *columns)
               and (theirs != ours or ours not in _OPTIONAL) and not _may_lack(table, ours, theirs)]
    if lacking:
        missing = ", ".join(str(table.column(ours)) for ours in lacking)
        raise DataError(f"{path} has no column {missing} (columns found: {', '.join(columns)}); "
                        f"{_advice(table, file, lacking)}")
    named = [*table.attribute_names().values(), *table.settings.where]
    missing = [name for name in named if name not in table.columns]
    shown = table.shown(columns) if table.shows_all else ()
    if repeated := file.repeated & {*named, *map(table.column, COLUMNS[table.name]), *shown}:
        raise DataError(f"{path} has several columns {min(repeated)}: give each a name of its own, or "
                        f"name them all in {table.key}.header")
    if missing and not table.may_lack_keys:
        raise DataError(f"{path} has no column {missing[0]}, which {table.key} names (columns found: "
                        f"{', '.join(columns)})")
    nested = [theirs for ours in COLUMNS[table.name] if (kind := types.get(theirs := table.column(ours)))
              and pa.types.is_nested(kind)]
    if nested:
        raise DataError(f"{path}: column {nested[0]} must hold plain values, not {types[nested[0]]}")
    kind = types.get("attributes")
    if table.name in ("users", "items") and table.attributes_setting is None and kind is not None \
            and not holds_attributes(kind):
        raise DataError(f"{path}: column attributes must be a map, a struct or JSON objects, not {kind}; "
                        f"to read other columns: {table.key}.attributes=[NAME, ...]")


def _advice(table: Table, file: FileInfo, lacking: list[str]) -> str:
    """What to set where columns are missing."""
    form, outer = file.form, [str(table.column(ours)).partition(".")[0] for ours in lacking]
    if form.kind != "delimited" and any(name in file.types for name in outer):
        return f"a key inside of an object is read by a query: {table.key}.query=\"SELECT " \
            f"{table.column(lacking[0])} AS {lacking[0]}, ... FROM {form.kind}.`{file.path}`\""
    similar = {ours: _similar(ours, table.column(ours), file.columns) for ours in lacking}
    names = ", ".join(f"{ours}: {theirs or 'COLUMN'}" for ours, theirs in similar.items())
    advice = f"say which it is: {table.key}.columns={{{names}}}"
    if any(_composed(theirs) == _composed(table.column(ours)) for ours, theirs in similar.items()):
        advice += ". Copy the name from here: it looks like yours, but encodes accents in another way " \
            "(Unicode NFC, NFD)"
    if "timestamp" in lacking and not similar["timestamp"]:
        advice += f". If none has times, the order of rows counts: {table.key}.columns={{timestamp: null}}"
    other = next((mark for mark in formats.USUAL for name in file.columns if mark in name), form.separator)
    if form.kind == "delimited" and other != form.separator:
        advice += f". If {other!r} separates fields: {table.key}.separator={other!r}"
    if form.kind == "delimited" and not form.header and not any(similar.values()):
        advice += f". If its first line is no header but data: {table.key}.header=[NAME, ...]"
    return advice


def _may_lack(table: Table, ours: str, theirs: str) -> bool:
    """Whether a file may lack a column: another file has it, or it is a key of later objects."""
    return ours in ("title", "rating", "knowledge") and (theirs in table.columns or table.may_lack_keys)


def _require(file: FileInfo, columns: Sequence[str]) -> None:
    """Check that a file has columns. Those of JSON objects may be missing in all of the first ones."""
    missing = [name for name in columns if name not in file.types and file.form.kind != "json"]
    if missing:
        raise DataError(f"{file.path} has no column {missing[0]} (columns found: {', '.join(file.types)})")


def _similar(ours: str, theirs: str, columns: Sequence[str]) -> str | None:
    """The column that is probably meant: one nearly named so, else one that is probably ours."""
    named = _nearest(theirs, columns) if theirs != ours else None
    return named or column_for(ours, columns) or _nearest(ours, columns)


def _nearest(name: str, columns: Iterable[str]) -> str | None:
    """The column whose name differs least, in any case and composition; None if all differ much."""
    plain = {_composed(each).lower(): each for each in sorted(columns)}
    near = difflib.get_close_matches(_composed(name).lower(), plain, n=1)
    return plain[near[0]] if near else None


def _composed(name: str | None) -> str:
    """A name whose accents are parts of their letters (NFC), as most programs write them."""
    return unicodedata.normalize("NFC", name or "")
