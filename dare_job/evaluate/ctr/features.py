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
from dare_job.tables.published import parquet_files

_CLUSTER = re.compile("cluster_[0-9]+")
_MAX_CODE = 2**31 - 2  # models add 1: 0 means no text


@dataclass(frozen=True)
class Maker:
    """The encoder that made vectors, and the SHA-256 (hex) of its files; empty if unknown."""

    name: str
    sha256: str = ""

    @property
    def key(self) -> str:
        """Key that is equal for equal files, or for equal names if the files are unknown."""
        return self.sha256 or self.name

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.sha256[:12])))


def maker(table: pa.Table) -> Maker | None:
    """The encoder in the files' metadata; None if unknown."""
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    encoder = Maker(metadata.get("dare_job.encoder", ""), metadata.get("dare_job.encoder_sha256", ""))
    return encoder if encoder.key else None


def vectors(table: pa.Table, folder: AnyPath) -> tuple[list[str], np.ndarray]:
    """Ids and their vectors (T, d) float32, without rows that have no vector.

    Raises
    ------
    DataError
        The column ``vector`` is missing, or does not hold lists of finite numbers of one size.
    """
    _require(table, "vector", folder)
    table = table.filter(pc.is_valid(table["vector"]))
    ids = table["entity_id"].to_pylist()
    if not ids:
        return ids, np.empty((0, 0), np.float32)
    try:
        rows = np.stack(table["vector"].to_numpy()).astype(np.float32)
    except (ValueError, TypeError):
        rows = np.empty(0)
    if rows.ndim != 2 or not rows.size:
        raise DataError(f"{folder}: the column vector ({table['vector'].type}) must hold lists of numbers, "
                        "all of one size: encode that date again")
    bad = ~np.isfinite(rows).all(1)
    if bad.any():
        raise DataError(f"{folder}: the vector of {ids[int(bad.argmax())]!r} has a number that is not finite")
    return ids, rows


def clusters(table: pa.Table, folder: AnyPath) -> tuple[list[str], np.ndarray]:
    """Ids and their cluster ids (T, L) int32, coarse levels first.

    Raises
    ------
    DataError
        The column ``cluster_0`` is missing, or a column of cluster ids does not hold an integer from 0 to
        ``_MAX_CODE`` in each row.
    """
    names = sorted(filter(_CLUSTER.fullmatch, table.column_names), key=lambda name: int(name[8:]))
    _require(table, "cluster_0", folder)
    codes = np.column_stack([table[name].to_numpy() for name in names])
    if codes.dtype.kind != "i" or ((codes < 0) | (codes > _MAX_CODE)).any():  # with nulls they are floats
        raise DataError(f"{folder}: the columns {', '.join(names)} must hold integers from 0 to {_MAX_CODE}, "
                        "one in each row: encode that date again")
    return table["entity_id"].to_pylist(), codes.astype(np.int32)


def _require(table: pa.Table, name: str, folder: AnyPath) -> None:
    if name not in table.column_names:
        raise DataError(f"{folder}: column {name} is missing (found: {', '.join(table.column_names)})")


def read(folder: AnyPath, columns: Sequence[str] = ()) -> pa.Table | None:
    """Read all rows of a folder's files; None if there is no file.

    The ids and ``columns`` are cast to text.

    Raises
    ------
    DataError
        A file is damaged, a column is missing or cannot be cast, or an id is missing or duplicated.
    """
    parts = []
    try:
        for path in parquet_files(folder):
            with paths.arrow_source(path) as source, pq.ParquetFile(source) as file:
                parts.append(file.read())
        if not parts:
            return None
        table = pa.concat_tables(parts, promote_options="default")
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{folder}: a file is damaged, or the files differ in their columns: "
                        f"{str(error).splitlines()[0]}") from None
    for name in ["entity_id", *columns]:
        _require(table, name, folder)
        try:
            text = pc.cast(table[name], pa.string())
        except pa.ArrowException:
            raise DataError(f"{folder}: the column {name} is {table[name].type}; text is expected: publish "
                            "that date again") from None
        table = table.set_column(table.column_names.index(name), name, text)
    if table["entity_id"].null_count:
        raise DataError(f"{folder}: {table['entity_id'].null_count} rows have no entity_id")
    if duplicates := repeated(table["entity_id"]):
        raise DataError(f"{folder}: ids with more than one row: {', '.join(duplicates)}")
    return table


def by_id(table: pa.Table | None, name: str) -> dict[str, str]:
    """Values of a column by id, without nulls; empty if there is no such column."""
    if table is None or name not in table.column_names:
        return {}
    pairs = zip(table["entity_id"].to_pylist(), table[name].to_pylist(), strict=True)
    return {entity: value for entity, value in pairs if value is not None}
