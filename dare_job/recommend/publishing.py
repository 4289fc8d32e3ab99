"""The date's table of candidates out of its chunks: files by user, checked before anybody sees them."""

import hashlib
import secrets
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

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
                        "users", "errors", "popular", "forwards", "accepted")), ("wrong", pa.string())])
_SQL = {pa.int64(): "long", pa.string(): "string"}
SUMS = ("rows", "users", "errors", "popular", "forwards", "accepted")
Batches = Iterator[pa.RecordBatch]


def write(job: Job, chunks: AnyPath, folder: AnyPath, users: int, k: int) -> tuple[dict, dict]:
    """Write files to a folder; what a manifest says of each by name, and sums over all.

    Raises DataError where a user is missing, twice, or has neither k items nor an error.
    """
    table = read_parquet(job.spark, chunks, columns=CANDIDATES.names)
    cut = table.repartition(1 + users // _USERS_PER_FILE, "user_id").sortWithinPartitions("user_id", "rank")
    target, prefix = str(folder.resolve()), f"part-{secrets.token_hex(4)}"

    def write_all(batches: Batches) -> Batches:
        yield from _write(batches, target, prefix, k)

    names = ", ".join(f"{field.name} {_SQL[field.type]}" for field in _STATS)
    with executors.one_line_errors():
        found = cut.mapInArrow(write_all, names).toArrow().to_pylist()
    sums = {name: sum(row[name] for row in found) for name in SUMS}
    wrong = next((row["wrong"] for row in found if row["wrong"]), None)
    if wrong or sums["users"] != users:
        raise DataError(f"{chunks}: {wrong or 'lists'} of {sums['users']} users, {users} were asked for; "
                        "remove the folder and run `dare-job recommend` again")
    named = {row["file"]: {name: row[name] for name in ("rows", "bytes", "sha256")} for row in found}
    return dict(sorted(named.items())), sums


def _write(batches: Batches, folder: str, prefix: str, k: int) -> Batches:
    """Runs in a Spark task: one file of this partition's users."""
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
        **statistics(table), "wrong": find_problem(table, k)}], schema=_STATS)


def statistics(table: pa.Table) -> dict[str, int]:
    """Sums over the users of rows of CANDIDATES, one row of whom is their first."""
    first = table.filter(pa.compute.or_kleene(pa.compute.equal(table["rank"], 1), table["error"].is_valid()))
    total = {name: pa.compute.sum(first[column]).as_py() or 0
             for name, column in (("forwards", "target_forwards"), ("accepted", "accepted_steps"))}
    popular = pa.compute.sum(pa.compute.equal(first["source"], "popularity")).as_py() or 0
    errors = len(first) - first["error"].null_count
    return {"rows": len(table), "users": len(pa.compute.unique(table["user_id"])), "errors": errors,
            "popular": popular, **total}


def find_problem(table: pa.Table, k: int) -> str | None:
    """What is wrong with rows of CANDIDATES, sorted; None: each user has ranks 1 ... k, or one error."""
    users = table.group_by("user_id").aggregate([
        ("rank", "count"), ("rank", "min"), ("rank", "max"), ("item_id", "count_distinct"),
        ("error", "count"), ("user_id", "count")])
    for row in users.to_pylist():
        whole = (row["rank_count"] == row["rank_max"] == row["item_id_count_distinct"] == k
                 and row["rank_min"] == 1 and not row["error_count"])
        failed = row["error_count"] == row["user_id_count"] == 1
        if not whole and not failed:
            return f"no whole list of user {row['user_id']!r} among the lists"
    return None
