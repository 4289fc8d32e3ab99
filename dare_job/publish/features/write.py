"""Writes the table of features: rows ordered by id, in files and row groups of a constant size.

Spark groups the rows by file; pyarrow writes each file, one row group at a time.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema

from dare_job.publish.features.clusters import Codebooks
from dare_job.publish.features.inputs import Origin, matrix
from dare_job.spark import executors
from dare_job.storage import paths as storage_paths

_MAX_GROUPS_PER_FILE = 8
_TASKS_PER_SLOT = 4
_FILE = pa.schema([("file", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()),
                   ("sha256", pa.string()), ("reused", pa.int64()), ("distance", pa.float64())])


@dataclass(frozen=True)
class Layout:
    """What a task needs to write files.

    Attributes
    ----------
    schema
        FEATURES, with the metadata of this date.
    codebooks
        None: no clusters.
    group
        Rows per row group.
    origin
        Where the vectors come from.
    """

    folder: str
    prefix: str
    schema: pa.Schema
    codebooks: Codebooks | None
    group: int
    origin: Origin


@dataclass(frozen=True)
class Written:
    """The files by name (rows, bytes, sha256), and sums over their rows.

    Attributes
    ----------
    reused
        Rows with the vector of previous features.
    distance
        Squared distances of vectors from the sums of their centroids.
    """

    files: dict[str, dict] = field(default_factory=dict)
    rows: int = 0
    reused: int = 0
    distance: float = 0.0


def assign_files(ids: pa.Table, group: int, slots: int) -> pa.Table:
    """Add the number of the ``file`` to rows of IDS, which are ordered by ``id``.

    Files contain complete row groups, and there are enough of them to use all of Spark's ``slots``.
    """
    groups = max(1, min(_MAX_GROUPS_PER_FILE, len(ids) // (group * slots * _TASKS_PER_SLOT)))
    file = np.arange(len(ids), dtype=np.int64) // (group * groups)
    return ids.append_column("file", pa.array(file.astype(np.int32)))


def write(rows, count: int, layout: Layout) -> Written:
    """Write a DataFrame (entity_id, id, file, text_sha256, vector, reused) of ``count`` files.

    Parameters
    ----------
    reused
        The vector comes from previous features.
    """
    parts = rows.repartition(count, "file").groupBy("file")
    with executors.one_line_errors():
        files = parts.applyInArrow(lambda file: write_file(file, layout), from_arrow_schema(_FILE)).toArrow()
    files = files.sort_by("file").to_pylist()
    by_name = {file["file"]: {name: file[name] for name in ("rows", "bytes", "sha256")} for file in files}
    sums = {name: sum(file[name] for file in files) for name in ("rows", "reused", "distance")}
    return Written(by_name, **sums)


def write_file(rows: pa.Table, layout: Layout) -> pa.Table:
    """In a Spark task: write the rows of a file and return its statistics."""
    number, rows, distance = rows["file"][0].as_py(), rows.sort_by("id"), 0.0
    path = storage_paths.path(layout.folder) / f"{layout.prefix}-{number:05d}.parquet"
    strings = [name for name in layout.schema.names if name in ("entity_id", "text_sha256")]
    with storage_paths.arrow_sink(path) as sink, pq.ParquetWriter(
            sink, layout.schema, compression="zstd", use_dictionary=strings) as writer:
        for start in range(0, len(rows), layout.group):
            group, group_distance = _group(rows.slice(start, layout.group), layout)
            writer.write_table(group, row_group_size=layout.group)
            distance += group_distance
    with path.open("rb") as written:
        sha256 = hashlib.file_digest(written, "sha256").hexdigest()
    file = {"file": path.name, "rows": len(rows), "bytes": path.stat().st_size, "sha256": sha256,
            "reused": pc.sum(rows["reused"]).as_py(), "distance": distance}
    return pa.Table.from_pylist([file], schema=_FILE)


def _group(rows: pa.Table, layout: Layout) -> tuple[pa.Table, float]:
    """A row group of FEATURES, and the sum of its distances."""
    vectors = matrix(rows, "entity_id", layout.origin)
    columns = {"entity_id": rows["entity_id"], "id": rows["id"], "text_sha256": rows["text_sha256"],
               "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), layout.origin.dim)}
    distance = 0.0
    if layout.codebooks:
        paths, errors = layout.codebooks.paths(vectors)
        columns |= {f"cluster_{level}": pa.array(paths[:, level]) for level in range(paths.shape[1])}
        distance = float(errors.sum())
    return pa.table([columns[name] for name in layout.schema.names], schema=layout.schema), distance
