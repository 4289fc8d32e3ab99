"""Ready-made vectors in, VECTORS out. Every rule that a vector has to keep."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job import files
from dare_job.errors import DataError
from dare_job.files import AnyPath
from dare_job.tables import VECTORS

_ROWS_PER_GROUP = 100_000


def write(path: AnyPath, ids: pa.Array | Sequence[str], vectors: np.ndarray) -> None:
    """Write ids (n,) and vectors (n, d) as a VECTORS file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = pa.array(ids, pa.string()) if not isinstance(ids, pa.Array) else ids
    with files.sink(path) as sink, pq.ParquetWriter(sink, VECTORS) as writer:
        for start in range(0, max(len(ids), 1), _ROWS_PER_GROUP):
            part = np.ascontiguousarray(vectors[start:start + _ROWS_PER_GROUP], dtype=np.float32)
            offsets = np.arange(len(part) + 1, dtype=np.int32) * part.shape[1]
            lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(part.ravel()))
            writer.write_table(pa.table([ids[start:start + _ROWS_PER_GROUP], lists], schema=VECTORS))


def read(path: AnyPath) -> tuple[pa.Array, np.ndarray]:
    """Ids (n,) and vectors (n, d) float32 of a Parquet file or folder (entity_id, vector).

    Raises DataError naming the file and the first bad row: a missing file or column, an empty, repeated or
    missing id, a missing vector, another dimension than the first row's, a number that is not finite.
    """
    try:
        filesystem, name = files.arrow(path)
        table = pq.read_table(name, filesystem=filesystem, columns=["entity_id", "vector"])
    except FileNotFoundError:
        raise DataError(f"{path}: no such file of vectors") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: columns entity_id and vector cannot be read: "
                        f"{str(error).splitlines()[0]}") from None
    if set(table.column_names) != {"entity_id", "vector"}:
        raise DataError(f"{path} must have the columns entity_id and vector")
    ids = table["entity_id"].cast(pa.string()).combine_chunks()
    lists = table["vector"]
    if not any(check(lists.type) for check in (pa.types.is_list, pa.types.is_large_list,
                                               pa.types.is_fixed_size_list)):
        raise DataError(f"{path}: column vector must hold lists of numbers, not {lists.type}")
    lists = lists.cast(pa.large_list(pa.float32())).combine_chunks()
    _refuse(path, ids, pc.or_(pc.is_null(ids), pc.equal(pc.fill_null(ids, ""), "")), "has no entity_id")
    _refuse(path, ids, pc.is_null(lists), "has no vector")
    if not len(ids):
        return ids, np.zeros((0, 1), dtype=np.float32)
    lengths = pc.list_value_length(lists)
    size = lengths[0].as_py()
    _refuse(path, ids, pc.or_(pc.not_equal(lengths, size), pc.equal(lengths, 0)),
            f"has another dimension than the first row's {size}")
    values = lists.flatten()
    vectors = values.to_numpy(zero_copy_only=False).reshape(len(ids), size)
    finite = np.isfinite(vectors).all(axis=1)
    _refuse(path, ids, pa.array(~finite), "holds a number that is missing or not finite")
    if pc.count_distinct(ids).as_py() != len(ids):
        counts = pc.value_counts(ids)
        twice = next(row["values"] for row in counts.to_pylist() if row["counts"] > 1)
        raise DataError(f"{path}: entity_id {twice!r} is there more than once")
    return ids, vectors


def _refuse(path: AnyPath, ids: pa.Array, bad: pa.Array, what: str) -> None:
    rows = np.flatnonzero(bad.to_numpy(zero_copy_only=False))
    if len(rows):
        raise DataError(f"{path}: row {rows[0] + 1} (entity_id {ids[int(rows[0])].as_py()!r}) {what}; "
                        f"{len(rows)} such rows")
