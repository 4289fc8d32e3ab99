"""Writes the table of features: rows ordered by id, in files and row groups of a constant size.

Spark sorts the rows into files; pyarrow writes each file, one row group at a time.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.publish.features.clusters import Codebooks
from dare_job.publish.features.inputs import Origin, matrix
from dare_job.spark import executors
from dare_job.storage import paths as storage_paths

_MAX_GROUPS_PER_FILE = 8
_TASKS_PER_SLOT = 4
_STATS = pa.schema([("file", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()),
                    ("sha256", pa.string()), ("reused", pa.int64()), ("distance", pa.float64()),
                    ("compared", pa.int64()), ("moved", pa.int64())])
_SUMS = ("rows", "reused", "distance", "compared", "moved")
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Layout:
    """What a task needs to write files.

    schema : FEATURES, with the metadata of this date
    codebooks : None: no clusters
    group : rows per row group
    origin : where the vectors come from
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

    reused : rows with the vector of previous features
    distance : squared distances of vectors from the sums of their centroids
    compared : rows whose text had features with the same codebooks; ``moved`` of them changed their cluster
    """

    files: dict[str, dict] = field(default_factory=dict)
    rows: int = 0
    reused: int = 0
    distance: float = 0.0
    compared: int = 0
    moved: int = 0


def assign_files(ids: pa.Table, group: int, slots: int) -> pa.Table:
    """Add the number of the ``file`` to rows of IDS, which are ordered by ``id``.

    Files contain complete row groups, and there are enough of them to use all of Spark's ``slots``.
    """
    groups = max(1, min(_MAX_GROUPS_PER_FILE, len(ids) // (group * slots * _TASKS_PER_SLOT)))
    file = np.arange(len(ids), dtype=np.int64) // (group * groups)
    return ids.append_column("file", pa.array(file.astype(np.int32)))


def write(rows, count: int, layout: Layout) -> Written:
    """Write a DataFrame (entity_id, id, file, text_sha256, vector, reused, before) of ``count`` files.

    reused : the vector comes from previous features
    before : cluster id on the last level in previous features with the same codebooks; null for a new text
    """
    parts = rows.repartition(count, "file").sortWithinPartitions("id")

    def write_files(batches: Batches) -> Batches:
        yield from write_partition(batches, layout)

    columns = ("file string, rows long, bytes long, sha256 string, reused long, distance double, "
               "compared long, moved long")
    with executors.one_line_errors():
        groups = parts.mapInArrow(write_files, columns).toArrow().to_pylist()
    groups.sort(key=lambda row: row["file"])
    sums = {name: sum(row[name] for row in groups) for name in _SUMS}
    return Written({row["file"]: {name: row[name] for name in ("rows", "bytes", "sha256")} for row in groups},
                   **sums)


def write_partition(batches: Batches, layout: Layout) -> Batches:
    """In a Spark task: write files of rows sorted by id; yields the statistics of each file."""
    number, waiting = None, []
    for batch in batches:
        for part in _by_file(batch):
            if number is not None and part["file"][0].as_py() != number:
                yield _write_file(number, waiting, layout)
                waiting = []
            number = part["file"][0].as_py()
            waiting.append(part)
    if waiting:
        yield _write_file(number, waiting, layout)


def _by_file(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Split a batch at the borders between files."""
    if not len(batch):
        return []
    borders = np.flatnonzero(np.diff(batch["file"].to_numpy())) + 1
    bounds = [0, *borders.tolist(), len(batch)]
    return [batch.slice(start, end - start) for start, end in zip(bounds, bounds[1:], strict=False)]


def _write_file(number: int, parts: list[pa.RecordBatch], layout: Layout) -> pa.RecordBatch:
    path = storage_paths.path(layout.folder) / f"{layout.prefix}-{number:05d}.parquet"
    table, sums = pa.Table.from_batches(parts), np.zeros(3)
    strings = [name for name in layout.schema.names if name in ("entity_id", "text_sha256")]
    with storage_paths.arrow_sink(path) as sink, pq.ParquetWriter(
            sink, layout.schema, compression="zstd", use_dictionary=strings) as writer:
        for start in range(0, len(table), layout.group):
            group, group_sums = _group(table.slice(start, layout.group), layout)
            writer.write_table(group, row_group_size=layout.group)
            sums += group_sums
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    reused = pa.compute.sum(table["reused"]).as_py()
    row = {"file": path.name, "rows": len(table), "bytes": path.stat().st_size, "sha256": sha256,
           "reused": reused, "distance": sums[0], "compared": int(sums[1]), "moved": int(sums[2])}
    return pa.RecordBatch.from_pylist([row], schema=_STATS)


def _group(rows: pa.Table, layout: Layout) -> tuple[pa.Table, tuple[float, int, int]]:
    """A row group of FEATURES, and its sums of distance, compared rows and moved rows."""
    vectors = matrix(rows, "entity_id", layout.origin)
    columns = {"entity_id": rows["entity_id"], "id": rows["id"], "text_sha256": rows["text_sha256"],
               "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), layout.origin.dim)}
    sums = (0.0, 0, 0)
    if layout.codebooks:
        paths, errors = layout.codebooks.paths(vectors)
        columns |= {f"cluster_{level}": pa.array(paths[:, level]) for level in range(paths.shape[1])}
        before = rows["before"].to_numpy()
        known = ~np.isnan(before.astype(np.float64))
        moved = known & (before != paths[:, -1])
        sums = float(errors.sum()), int(known.sum()), int(moved.sum())
    return pa.table([columns[name] for name in layout.schema.names], schema=layout.schema), sums
