"""Publishes the date's recommendations: chunk files become files by user, which are checked first."""

import hashlib
import secrets
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema

from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.schemas import CANDIDATES
from dare_job.spark import executors
from dare_job.spark.tables import read_parquet
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_USERS_PER_FILE = 100_000
_STATS = pa.schema([("file", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()),
                    ("sha256", pa.string()), *((name, pa.int64()) for name in (
                        "users", "errors", "popular", "forwards", "accepted")), ("problem", pa.string())])
SUMS = ("rows", "users", "errors", "popular", "forwards", "accepted")
Batches = Iterator[pa.RecordBatch]


def write(job: Job, chunks: AnyPath, folder: AnyPath, users: int, k: int) -> tuple[dict, dict]:
    """Write the table of candidates to a folder.

    Returns
    -------
    files
        Rows, bytes and sha256 by file name, for the manifest.
    sums
        Totals over all files, by the names in ``SUMS``.

    Raises
    ------
    DataError
        A user is missing, occurs twice, or has neither k items nor an error.
    """
    table = read_parquet(job.spark, chunks, columns=CANDIDATES.names)
    partitioned = table.repartition(1 + users // _USERS_PER_FILE, "user_id")
    partitioned = partitioned.sortWithinPartitions("user_id", "rank")
    target, prefix = str(folder.resolve()), f"part-{secrets.token_hex(4)}"

    def write_all(batches: Batches) -> Batches:
        yield from _write(batches, target, prefix, k)

    with executors.one_line_errors():
        file_records = partitioned.mapInArrow(write_all, from_arrow_schema(_STATS)).toArrow().to_pylist()
    sums = {name: sum(row[name] for row in file_records) for name in SUMS}
    problem = next((row["problem"] for row in file_records if row["problem"]), None)
    if problem or sums["users"] != users:
        raise DataError(f"{chunks}: {problem or 'recommendations are incomplete'} ({sums['users']} of "
                        f"{users} users); remove the folder and run the stage recommend again")
    files = {row["file"]: {name: row[name] for name in ("rows", "bytes", "sha256")} for row in file_records}
    return dict(sorted(files.items())), sums


def _write(batches: Batches, folder: str, prefix: str, k: int) -> Batches:
    """Write one file with the users of this partition; runs in a Spark task."""
    from pyspark import TaskContext

    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return
    table = pa.Table.from_batches(filled).cast(CANDIDATES)
    path = paths.path(folder) / f"{prefix}-{TaskContext.get().partitionId():05d}.parquet"
    with paths.atomic_writer(path, f".{path.name}.partial") as file:
        pq.write_table(table, file, compression="zstd")
    content = path.read_bytes()
    yield pa.RecordBatch.from_pylist([{
        "file": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(),
        **statistics(table), "problem": find_problem(table, k)}], schema=_STATS)


def statistics(table: pa.Table) -> dict[str, int]:
    """Sum over the users of rows of CANDIDATES; a user's first row counts."""
    first = table.filter(pa.compute.or_kleene(pa.compute.equal(table["rank"], 1), table["error"].is_valid()))
    total = {name: pa.compute.sum(first[column]).as_py() or 0
             for name, column in (("forwards", "target_forwards"), ("accepted", "accepted_steps"))}
    popular = pa.compute.sum(pa.compute.equal(first["source"], "popularity")).as_py() or 0
    errors = len(first) - first["error"].null_count
    return {"rows": len(table), "users": len(pa.compute.unique(table["user_id"])), "errors": errors,
            "popular": popular, **total}


def find_problem(table: pa.Table, k: int) -> str | None:
    """Return what is wrong with rows of CANDIDATES; None if each user has ranks 1 to k or one error."""
    users = table.group_by("user_id").aggregate([
        ("rank", "count"), ("rank", "min"), ("rank", "max"), ("item_id", "count_distinct"),
        ("error", "count"), ("user_id", "count")])
    for row in users.to_pylist():
        complete = (row["rank_count"] == row["rank_max"] == row["item_id_count_distinct"] == k
                    and row["rank_min"] == 1 and not row["error_count"])
        failed = row["error_count"] == row["user_id_count"] == 1
        if not complete and not failed:
            return f"recommendations are incomplete for user {row['user_id']!r}"
    return None
