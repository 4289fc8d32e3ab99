"""Vectors of Arrow tables as a matrix, or the row that is damaged."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.errors import DataError


@dataclass(frozen=True)
class Origin:
    """Where tonight's vectors come from.

    made    folder of the chunks that this date's runs encoded
    before  folder of the features that reused vectors are taken from; empty: none are
    dim     numbers of a vector
    """

    made: str
    before: str
    dim: int


def matrix(rows: pa.Table, key: str, origin: Origin) -> np.ndarray:
    """(n, dim) float32 of a table's ``vector``; ``reused`` says which are of before, ``key`` names rows.

    Raises DataError that names row and folder where a vector is missing, of another size, or not finite.
    """
    lists = rows["vector"].combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
    bad = lengths != origin.dim
    if not bad.any():
        found = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), origin.dim)
        bad = ~np.isfinite(found).all(axis=1)
        if not bad.any():
            return found.astype(np.float32)
    row = int(bad.argmax())
    raise DataError(_said(rows[key][row].as_py(), int(lengths[row]), rows["reused"][row].as_py(), origin))


def _said(name: str, length: int, reused: bool, origin: Origin) -> str:
    if length < 0:
        wrong = "is missing"
    elif length != origin.dim:
        wrong = f"has {length} numbers, not {origin.dim}"
    else:
        wrong = "has a number that is not finite"
    fix = "remove that folder, its texts are encoded again"
    if reused:
        fix = ("put a whole copy of that folder in its place, or remove it: its texts are encoded again, and "
               "clusters are those of an older date, or new ones")
    return f"{origin.before if reused else origin.made}: the vector of {name!r} {wrong}: {fix}"
