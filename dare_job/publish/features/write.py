"""Writes the table of features: rows in order of id, cut into files and row groups of a constant size.

Spark sorts rows into files by their place among all; each file is written by pyarrow, row group by row group.
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

_GROUPS_A_FILE = 8  # at most
_TASKS_A_SLOT = 4
_STATS = pa.schema([("file", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()),
                    ("sha256", pa.string()), ("reused", pa.int64()), ("distance", pa.float64()),
                    ("compared", pa.int64()), ("moved", pa.int64())])
_SUMS = ("rows", "reused", "distance", "compared", "moved")
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Layout:
    """What a task must know to write files.

    schema     of FEATURES, with the metadata of this date
    codebooks  or None: no clusters
    group      rows of a row group
    origin     of the vectors
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

    reused    rows whose vector was there before
    distance  squared, of vectors from the centroids of their paths
    compared  rows whose text had features with the same codebooks before; ``moved`` of them have other ids
    """

    files: dict[str, dict] = field(default_factory=dict)
    rows: int = 0
    reused: int = 0
    distance: float = 0.0
    compared: int = 0
    moved: int = 0


def numbered(ids: pa.Table, group: int, slots: int) -> pa.Table:
    """Rows of IDS in order of ``id``, with the number of the ``file`` that each belongs to.

    Files have whole row groups, so many that all of Spark's ``slots`` have work.
    """
    groups = max(1, min(_GROUPS_A_FILE, len(ids) // (group * slots * _TASKS_A_SLOT)))
    place = np.arange(len(ids), dtype=np.int64) // (group * groups)
    return ids.append_column("file", pa.array(place.astype(np.int32)))


def write(rows, count: int, layout: Layout) -> Written:
    """Write a DataFrame (entity_id, id, file, text_sha256, vector, reused, before) of ``count`` files.

    reused  the vector is that of earlier features
    before  id on the last level, in features of the same codebooks before; null: of a new text
    """
    cut = rows.repartition(count, "file").sortWithinPartitions("id")

    def write_files(batches: Batches) -> Batches:
        yield from write_partition(batches, layout)

    columns = ("file string, rows long, bytes long, sha256 string, reused long, distance double, "
               "compared long, moved long")
    with executors.one_line_errors():
        found = cut.mapInArrow(write_files, columns).toArrow().to_pylist()
    found.sort(key=lambda row: row["file"])
    sums = {name: sum(row[name] for row in found) for name in _SUMS}
    return Written({row["file"]: {name: row[name] for name in ("rows", "bytes", "sha256")} for row in found},
                   **sums)


def write_partition(batches: Batches, layout: Layout) -> Batches:
    """Runs in a Spark task: the files of rows sorted by id; yields each one's figures."""
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
    """A batch cut where its rows belong to the next file."""
    if not len(batch):
        return []
    borders = np.flatnonzero(np.diff(batch["file"].to_numpy())) + 1
    cuts = [0, *borders.tolist(), len(batch)]
    return [batch.slice(start, end - start) for start, end in zip(cuts, cuts[1:], strict=False)]


def _write_file(number: int, parts: list[pa.RecordBatch], layout: Layout) -> pa.RecordBatch:
    path = storage_paths.path(layout.folder) / f"{layout.prefix}-{number:05d}.parquet"
    table, sums = pa.Table.from_batches(parts), np.zeros(3)
    plain = [name for name in layout.schema.names if name in ("entity_id", "text_sha256")]
    with storage_paths.arrow_sink(path) as sink, pq.ParquetWriter(
            sink, layout.schema, compression="zstd", use_dictionary=plain) as writer:
        for start in range(0, len(table), layout.group):
            group, figures = _group(table.slice(start, layout.group), layout)
            writer.write_table(group, row_group_size=layout.group)
            sums += figures
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    reused = pa.compute.sum(table["reused"]).as_py()
    row = {"file": path.name, "rows": len(table), "bytes": path.stat().st_size, "sha256": sha256,
           "reused": reused, "distance": sums[0], "compared": int(sums[1]), "moved": int(sums[2])}
    return pa.RecordBatch.from_pylist([row], schema=_STATS)


def _group(rows: pa.Table, layout: Layout) -> tuple[pa.Table, tuple[float, int, int]]:
    """Rows of FEATURES; distance from the centroids, rows compared, rows whose ids are others."""
    vectors = matrix(rows, "entity_id", layout.origin)
    columns = {"entity_id": rows["entity_id"], "id": rows["id"], "text_sha256": rows["text_sha256"],
               "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), layout.origin.dim)}
    figures = (0.0, 0, 0)
    if layout.codebooks:
        paths, left = layout.codebooks.paths(vectors)
        columns |= {f"cluster_{level}": pa.array(paths[:, level]) for level in range(paths.shape[1])}
        before = rows["before"].to_numpy()
        known = ~np.isnan(before.astype(np.float64))
        moved = known & (before != paths[:, -1])
        figures = float(left.sum()), int(known.sum()), int(moved.sum())
    return pa.table([columns[name] for name in layout.schema.names], schema=layout.schema), figures
