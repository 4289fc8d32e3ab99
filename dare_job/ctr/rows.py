"""Rows of a folder of Parquet files that has each id once."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job import files
from dare_job.errors import DataError
from dare_job.features.ids import repeated
from dare_job.files import AnyPath
from dare_job.knowledge import parquet_files

_SHOWN = 3
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
_DAY = (pa.types.is_date,)


def read(folder: AnyPath, wanted: list[str] | None = None) -> pa.Table | None:
    """All rows of a folder's files; None where there is no file.

    wanted  columns of text; days (``*_dt``) may be dates
    Raises DataError naming a damaged file, a column that is missing (``entity_id`` or of ``wanted``) or is no
    text, or ids that are there twice.
    """
    parts = []
    for path in parquet_files(folder):
        try:
            with files.source(path) as source, pq.ParquetFile(source) as file:
                parts.append(file.read())
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    if not parts:
        return None
    try:
        table = pa.concat_tables(parts, promote_options="default")
    except pa.ArrowException as error:
        raise DataError(f"{folder}: its files differ in their columns: {error}") from None
    for name in ["entity_id", *(wanted or [])]:
        if name not in table.column_names:
            raise DataError(f"{folder}: column {name} is missing (found: {', '.join(table.column_names)})")
    for name in wanted or []:
        table = _as_text(table, name, folder)
    return _unique(table, folder)


def by_id(table: pa.Table | None, name: str) -> dict[str, str]:
    """A column by id, as far as it is there."""
    if table is None or name not in table.column_names:
        return {}
    pairs = zip(table["entity_id"].to_pylist(), table[name].to_pylist(), strict=True)
    return {entity: value for entity, value in pairs if value is not None}


def _unique(table: pa.Table, folder: AnyPath) -> pa.Table:
    """The table, its ids as text."""
    if table["entity_id"].null_count:
        raise DataError(f"{folder}: {table['entity_id'].null_count} rows have no entity_id")
    try:
        ids = pc.cast(table["entity_id"], pa.string())
    except pa.ArrowException:
        raise DataError(f"{folder}: the column entity_id is {table['entity_id'].type}; text or whole numbers "
                        "are expected") from None
    if twice := repeated(ids, len(table)):
        named = ", ".join(twice[:_SHOWN]) + (" ..." if len(twice) > _SHOWN else "")
        raise DataError(f"{folder}: {len(twice)} ids are there more than once ({named}); one text an id is "
                        "expected")
    return table.set_column(table.column_names.index("entity_id"), "entity_id", ids)


def _as_text(table: pa.Table, name: str, folder: AnyPath) -> pa.Table:
    kind = table[name].type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(check(value) for check in (*_TEXT, *(_DAY if name.endswith("_dt") else ()))):
        raise DataError(f"{folder}: the column {name} is {kind}; text is expected: publish that date again")
    return table.set_column(table.column_names.index(name), name, pc.cast(table[name], pa.string()))
