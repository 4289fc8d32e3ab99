"""Read and check vectors or cluster ids of OUT/features, and Parquet folders with one row per id."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.errors import DataError
from dare_job.publish.features.ids import repeated
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables.published import parquet_files, read_manifest

_CLUSTER = re.compile("cluster_[0-9]+")
_MOST = 2**31 - 2  # 0 is for those without
_SHOWN = 3
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
_DAY = (pa.types.is_date,)
_LIST = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_NUMBER = (pa.types.is_floating, pa.types.is_integer)


@dataclass(frozen=True)
class Maker:
    """The encoder that made vectors.

    sha256 : SHA-256 (hex) of its files; empty: unknown
    window : tokens per forward pass; None: its maximum
    """

    name: str
    sha256: str = ""
    window: int | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        """Key that is equal for equal files (or names, if the files are unknown) and equal windows."""
        return self.sha256 or self.name, self.window

    def __str__(self) -> str:
        words = " ".join(filter(None, (self.name, self.sha256[:12])))
        return words if self.window is None else f"{words}, {self.window} tokens at once"


def require_date(table: pa.Table, folder: AnyPath, dt: str) -> None:
    """Raise DataError if the files' metadata has another date than their folder."""
    said = _said(table).get("dt", dt)
    if said != dt:
        raise DataError(f"{folder}: its files say that they are of {said}, the folder says {dt}: encode that "
                        "date again")


def maker(table: pa.Table, folder: AnyPath) -> Maker | None:
    """The encoder in the files' metadata, with the window in the folder's manifest; None if unknown."""
    said, listed = _said(table), read_manifest(folder).get("encoder")
    window = listed.get("window") if isinstance(listed, dict) else None
    named = said.get("encoder"), said.get("encoder_sha256")
    return Maker(named[0] or "", named[1] or "", window) if any(named) else None


def vectors(table: pa.Table, folder: AnyPath) -> tuple[list[str], np.ndarray]:
    """Ids and their vectors (T, d) float32, without rows that have no vector.

    Raises DataError if the column ``vector`` is missing or no list of numbers, or vectors differ in size or
    are not finite.
    """
    _require(table, "vector", folder)
    table = table.filter(pc.is_valid(table["vector"]))
    ids, column = table["entity_id"].to_pylist(), table["vector"].combine_chunks()
    if not ids:
        return ids, np.empty((0, 0), np.float32)
    if not (_is(column.type, _LIST) and _is(column.type.value_type, _NUMBER)):
        raise DataError(f"{folder}: the column vector is {column.type}; lists of numbers are expected: "
                        "encode that date again")
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    if not lengths.any():
        raise DataError(f"{folder}: the vectors hold no number: encode that date again")
    odd = np.flatnonzero(lengths != lengths[0])
    if len(odd):
        raise DataError(f"{folder}: the vector of {ids[odd[0]]!r} has {lengths[odd[0]]} numbers, that of "
                        f"{ids[0]!r} {lengths[0]}; one size is expected")
    found = pc.list_flatten(column).to_numpy(zero_copy_only=False).reshape(len(lengths), -1)
    bad = ~np.isfinite(found).all(1)
    if bad.any():
        raise DataError(f"{folder}: the vector of {ids[int(bad.argmax())]!r} has a number that is not finite")
    return ids, found.astype(np.float32)


def clusters(table: pa.Table, folder: AnyPath) -> tuple[list[str], np.ndarray]:
    """Ids and their cluster ids (T, L) int32, coarse levels first. Raises DataError as ``vectors``."""
    names = sorted(filter(_CLUSTER.fullmatch, table.column_names), key=lambda name: int(name[8:]))
    _require(table, "cluster_0", folder)
    for name in names:
        if not pa.types.is_integer(table[name].type):
            raise DataError(f"{folder}: the column {name} is {table[name].type}; whole numbers are expected: "
                            "encode that date again")
    ids = table["entity_id"].to_pylist()
    codes = np.column_stack([table[name].to_numpy() for name in names])
    bad = ~((codes >= 0) & (codes <= _MOST)).all(1)  # so also where one is missing
    if bad.any():
        raise DataError(f"{folder}: the cluster ids of {ids[int(bad.argmax())]!r} are missing, below 0, or "
                        f"above {_MOST}")
    return ids, codes.astype(np.int32)


def _is(kind: pa.DataType, checks: tuple) -> bool:
    return any(check(kind) for check in checks)


def _require(table: pa.Table, name: str, folder: AnyPath) -> None:
    if name not in table.column_names:
        raise DataError(f"{folder}: no column {name} (found: {', '.join(table.column_names)})")


def _said(table: pa.Table) -> dict[str, str]:
    """The metadata of the schema, without the prefix of its keys."""
    return {key.decode().rpartition(".")[2]: value.decode()
            for key, value in (table.schema.metadata or {}).items()}


def read(folder: AnyPath, wanted: Sequence[str] = ()) -> pa.Table | None:
    """Read all rows of a folder's files; None if there is no file.

    Raises DataError if a file is damaged, a column is missing or not text, or an id is duplicated.

    Parameters
    ----------
    wanted : required text columns; days (``*_dt``) may be dates
    """
    parts = []
    for path in parquet_files(folder):
        try:
            with paths.arrow_source(path) as source, pq.ParquetFile(source) as file:
                parts.append(file.read())
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    if not parts:
        return None
    try:
        table = pa.concat_tables(parts, promote_options="default")
    except pa.ArrowException as error:
        raise DataError(f"{folder}: its files differ in their columns: {error}") from None
    for name in ["entity_id", *wanted]:
        if name not in table.column_names:
            raise DataError(f"{folder}: column {name} is missing (found: {', '.join(table.column_names)})")
    for name in wanted:
        table = _as_text(table, name, folder)
    return _unique(table, folder)


def by_id(table: pa.Table | None, name: str) -> dict[str, str]:
    """Values of a column by id, without nulls; empty if there is no such column."""
    if table is None or name not in table.column_names:
        return {}
    pairs = zip(table["entity_id"].to_pylist(), table[name].to_pylist(), strict=True)
    return {entity: value for entity, value in pairs if value is not None}


def shown(found: list[str]) -> str:
    """The first few of what a message names."""
    return ", ".join(found[:_SHOWN]) + (" ..." if len(found) > _SHOWN else "")


def _unique(table: pa.Table, folder: AnyPath) -> pa.Table:
    """The table with its ids as text. Raises DataError for missing or duplicate ids."""
    if table["entity_id"].null_count:
        raise DataError(f"{folder}: {table['entity_id'].null_count} rows have no entity_id")
    try:
        ids = pc.cast(table["entity_id"], pa.string())
    except pa.ArrowException:
        raise DataError(f"{folder}: the column entity_id is {table['entity_id'].type}; text or whole numbers "
                        "are expected") from None
    if twice := repeated(ids, len(table)):
        raise DataError(f"{folder}: {len(twice)} ids are there more than once ({shown(twice)}); one text an "
                        "id is expected")
    return table.set_column(table.column_names.index("entity_id"), "entity_id", ids)


def _as_text(table: pa.Table, name: str, folder: AnyPath) -> pa.Table:
    kind = table[name].type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not _is(value, _TEXT + _DAY if name.endswith("_dt") else _TEXT):
        raise DataError(f"{folder}: the column {name} is {kind}; text is expected: publish that date again")
    return table.set_column(table.column_names.index(name), name, pc.cast(table[name], pa.string()))
