"""Reads and validates precomputed vectors, and writes VECTORS tables."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.errors import DataError
from dare_job.schemas import VECTORS
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_ROWS_PER_GROUP = 100_000


def write_vectors(path: AnyPath, ids: pa.Array | Sequence[str], vectors: np.ndarray) -> None:
    """Write ids (n,) and vectors (n, d) to a VECTORS file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = pa.array(ids, pa.string()) if not isinstance(ids, pa.Array) else ids
    with paths.arrow_sink(path) as sink, pq.ParquetWriter(sink, VECTORS) as writer:
        for start in range(0, max(len(ids), 1), _ROWS_PER_GROUP):
            part = np.ascontiguousarray(vectors[start:start + _ROWS_PER_GROUP], dtype=np.float32)
            offsets = np.arange(len(part) + 1, dtype=np.int32) * part.shape[1]
            lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(part.ravel()))
            writer.write_table(pa.table([ids[start:start + _ROWS_PER_GROUP], lists], schema=VECTORS))


def read_vectors(path: AnyPath) -> tuple[pa.Array, np.ndarray]:
    """Read ids (n,) and vectors (n, d) float32 from a Parquet file or folder (entity_id, vector).

    Raises
    ------
    DataError
        The file or a column is missing or cannot be read; an id is missing, empty or repeated; a vector is
        missing, is empty, has another dimension than the first row, or has a missing or non-finite value.
        The message names the file and the first invalid row or id.
    """
    try:
        table = paths.parquet_dataset(path, format="parquet")
        _check_columns(path, table.schema)
        ids, vectors, start = [], np.zeros((0, 1), dtype=np.float32), 0
        for batch in table.to_batches(columns=["entity_id", "vector"]):
            if not start:
                vectors = np.empty((table.count_rows(), _size(batch)), dtype=np.float32)
            name, end = batch["entity_id"].cast(pa.string()), start + len(batch)
            vectors[start:end] = _check_batch(path, start, name, batch["vector"], vectors.shape[1])
            ids.append(name)
            start = end
    except FileNotFoundError:
        raise DataError(f"{path}: no such file of vectors") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: columns entity_id and vector cannot be read: "
                        f"{str(error).splitlines()[0]}") from None
    names = pa.chunked_array(ids, pa.string()).combine_chunks()
    if pc.count_distinct(names).as_py() != len(names):
        counts = pc.value_counts(names)
        twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
        raise DataError(f"{path}: entity_id {twice!r} occurs more than once")
    return names, vectors


def _check_columns(path: AnyPath, schema: pa.Schema) -> None:
    if not {"entity_id", "vector"} <= set(schema.names):
        raise DataError(f"{path} must have the columns entity_id and vector")
    kind, types = schema.field("vector").type, pa.types
    if not any(check(kind) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        raise DataError(f"{path}: column vector must hold lists of numbers, not {kind}")


def _size(batch: pa.RecordBatch) -> int:
    """Dimension of the first vector; 1 if it is empty, which is rejected later."""
    return (pc.list_value_length(batch["vector"][:1])[0].as_py() or 1) if len(batch) else 1


def _check_batch(path: AnyPath, start: int, ids: pa.Array, lists: pa.Array, size: int) -> np.ndarray:
    """Vectors (n, size) of a batch; ``start`` is the number of its first row. Raises DataError."""
    _reject(path, start, ids, pc.equal(pc.fill_null(ids, ""), ""), "has no entity_id")
    _reject(path, start, ids, pc.is_null(lists), "has no vector")
    lists = lists.cast(pa.large_list(pa.float32()))
    lengths = pc.list_value_length(lists)
    _reject(path, start, ids, pc.equal(lengths, 0), "has an empty vector")
    other = pc.not_equal(lengths, size)
    _reject(path, start, ids, other, f"has another dimension than the first row's {size}")
    vectors = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(ids), size)
    finite = np.isfinite(vectors).all(axis=1)
    _reject(path, start, ids, pa.array(~finite), "has a missing or non-finite value")
    return vectors


def _reject(path: AnyPath, start: int, ids: pa.Array, invalid: pa.Array, what: str) -> None:
    rows = np.flatnonzero(invalid.to_numpy(zero_copy_only=False))
    if len(rows):
        raise DataError(f"{path}: row {start + rows[0] + 1} (entity_id {ids[int(rows[0])].as_py()!r}) {what}")
