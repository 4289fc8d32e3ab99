"""Vectors or cluster ids of OUT/features, checked."""

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.errors import DataError
from dare_job.files import AnyPath
from dare_job.knowledge import manifest

_CLUSTER = re.compile("cluster_[0-9]+")
_MOST = 2**31 - 2  # 0 is for those without


@dataclass(frozen=True)
class Maker:
    """The encoder of some vectors.

    sha256  of its files (hex); empty: not known
    window  tokens read at once; None: as many as it can
    """

    name: str
    sha256: str = ""
    window: int | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        """Equal for equal files and windows; the name tells where the files are not known."""
        return self.sha256 or self.name, self.window

    def __str__(self) -> str:
        words = " ".join(filter(None, (self.name, self.sha256[:12])))
        return words if self.window is None else f"{words}, {self.window} tokens at once"


def require_date(table: pa.Table, folder: AnyPath, dt: str) -> None:
    """Raise DataError where the files say that they are of another date than their folder."""
    said = _said(table).get("dt", dt)
    if said != dt:
        raise DataError(f"{folder}: its files say that they are of {said}, the folder says {dt}: encode that "
                        "date again")


def maker(table: pa.Table, folder: AnyPath) -> Maker | None:
    """What made the vectors, where the files say so; their window is in the folder's manifest."""
    said, listed = _said(table), manifest(folder).get("encoder")
    window = listed.get("window") if isinstance(listed, dict) else None
    named = said.get("encoder"), said.get("encoder_sha256")
    return Maker(named[0] or "", named[1] or "", window) if any(named) else None


def vectors(table: pa.Table, folder: AnyPath) -> tuple[list[str], np.ndarray]:
    """Ids and their vectors (T, d) float32; rows without a vector are left out.

    Raises DataError where there is no such column of lists of numbers, or naming a row of another size or
    without a number.
    """
    _require(table, "vector", folder)
    table = table.filter(pc.is_valid(table["vector"]))
    ids, column = table["entity_id"].to_pylist(), table["vector"].combine_chunks()
    if not ids:
        return ids, np.empty((0, 0), np.float32)
    if not _is_list(column.type) or not _is_number(column.type.value_type):
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


def _is_list(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_list, pa.types.is_large_list,
                                         pa.types.is_fixed_size_list))


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


def _require(table: pa.Table, name: str, folder: AnyPath) -> None:
    if name not in table.column_names:
        raise DataError(f"{folder}: no column {name} (found: {', '.join(table.column_names)})")


def _said(table: pa.Table) -> dict[str, str]:
    """The metadata of the schema, without the prefix of its keys."""
    return {key.decode().rpartition(".")[2]: value.decode()
            for key, value in (table.schema.metadata or {}).items()}
