"""Recommend in Spark tasks, which commit chunk files, so that a killed run resumes with the missing chunks.

    _work/dt=D/recommend/<fingerprint>/chunks/part-<chunk>.parquet     schemas.CANDIDATES
    _work/dt=D/recommend/<fingerprint>/hung/                           ``generate/hangs.py``

The users of a chunk are chosen before (``users.prepare``), so a second attempt of a task (concurrent or not)
replaces a file with one of the same users.
"""

import os
import socket
import time
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from dare_job.errors import DareJobError, DeviceError, InfrastructureError
from dare_job.generate import hangs, shard_plan
from dare_job.generate.hangs import Watchdog
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.recommend import users
from dare_job.recommend.task import RecommendTask, load
from dare_job.schemas import CANDIDATES
from dare_job.spark import workers
from dare_job.spark.tables import read_parquet, row_count
from dare_job.storage import paths
from dare_job.tables import chunk_files

_TASKS_PER_SLOT = 4
_STATS = pa.schema([("chunk", pa.int64()), ("users", pa.int64()), ("busy_s", pa.float64()),
                    ("worker", pa.string())])
Batches = Iterator[pa.RecordBatch]


def write(job: Job, task: RecommendTask, count: int, user_count: int) -> list[dict]:
    """Write those of ``count`` chunks that are missing; returns the workers' statistics of each.

    A chunk that cannot be read is missing. After a run that failed because of too many errors, so is a chunk
    with an error.

    Parameters
    ----------
    user_count
        Number of users in all chunks.
    """
    paths.make_folder(task.chunks)
    chunk_files.discard_unreadable(task.chunks, row_count)
    folder = paths.path(task.folder)
    (folder / shard_plan.FAILED).unlink(missing_ok=True)
    if (folder / shard_plan.RETRY).exists():
        _discard_failed(task)
    missing = sorted(set(range(count)) - _committed(task))
    if not missing:
        return []

    def write_all(batches: Batches) -> Batches:
        yield from write_chunks(batches, task)

    def attempt() -> list[dict]:
        rows = _rows(job, task, sorted(set(missing) - _committed(task)))
        schema = from_arrow_schema(_STATS)
        return workers.map_in_dedicated_workers(rows, write_all, schema, "recommender").toArrow().to_pylist()

    users_per_chunk = user_count / count  # approximate: chunks are divided by a hash
    with progress.counting(
            "recommendations", round(users_per_chunk * len(missing)),
            lambda: round(users_per_chunk * (len(_committed(task)) - count + len(missing)))):
        statistics = hangs.retry_after_hangs(folder, task.plan_token, attempt)
    shard_plan.raise_failure(folder)
    return statistics


def _committed(task: RecommendTask) -> set[int]:
    return {chunk for chunk, in chunk_files.committed(task.chunks)}


def _discard_failed(task: RecommendTask) -> None:
    """Delete the chunks with errors and the records of hangs, so that they are tried again."""
    folder = paths.path(task.folder)
    for path in task.chunks.glob("part-*.parquet"):
        with paths.arrow_source(path) as source:
            errors = pq.read_table(source, columns=["error"])["error"]
        if errors.null_count < len(errors):
            path.unlink()
    paths.remove_tree(folder / hangs.FOLDER)
    (folder / shard_plan.RETRY).unlink()


def _rows(job: Job, task: RecommendTask, missing: list[int]) -> DataFrame:
    """Rows of the users of these chunks, each chunk in one partition."""
    wanted = job.spark.createDataFrame([(number,) for number in missing], "chunk int")
    columns = "user_id", "chunk", "history", "others"
    rows = read_parquet(job.spark, paths.path(task.users) / users.ROWS, columns=columns)
    slots = job.spark.sparkContext.defaultParallelism
    tasks = max(1, min(len(missing), _TASKS_PER_SLOT * slots))
    rows = rows.join(F.broadcast(wanted), "chunk", "left_semi").select(*columns)
    return rows.repartition(tasks, "chunk").sortWithinPartitions("chunk", "user_id")


def write_chunks(batches: Batches, task: RecommendTask) -> Batches:
    """In a Spark task: write a file per chunk, and yield its statistics.

    An error that concerns every user (a model that does not load) stops all workers. The driver raises it
    (``shard_plan.raise_failure``).

    Raises
    ------
    InfrastructureError
        This host lacks something.
    DeviceError
        The device failed; its users are recorded.
    """
    folder, worker = paths.path(task.folder), f"{socket.gethostname()}:{os.getpid()}"
    try:
        writer = load(task)
    except InfrastructureError:
        raise
    except DareJobError as error:
        shard_plan.record_failure(folder, error)
        return
    for chunk, rows in _by_chunk(batches):
        if (folder / shard_plan.FAILED).exists():
            return
        path = task.chunks / f"part-{chunk:06d}.parquet"
        if path.exists():  # an earlier attempt of this task wrote it
            continue
        began, record_hang = time.perf_counter(), partial(hangs.record_hang, task, chunk, worker)
        watchdog = Watchdog(task.hang_timeout_s, record_hang)
        try:
            with watchdog.running():
                written = list(watchdog.watch(writer, writer.rows(rows, hangs.hang_reasons(task, chunk))))
        except DeviceError as error:
            record_hang(error.ids, str(error))
            raise
        table = pa.Table.from_pylist([row | {"run_id": task.run_id} for row in written], CANDIDATES)
        chunk_files.write_table(path, table)
        stats = {"chunk": chunk, "users": len(rows), "busy_s": time.perf_counter() - began, "worker": worker}
        yield pa.RecordBatch.from_pylist([stats], schema=_STATS)


def _by_chunk(batches: Batches) -> Iterator[tuple[int, list[tuple[str, list[str], list[str]]]]]:
    """Yield (chunk, users) from batches that are sorted by chunk."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for chunk, users_of_chunk in groupby(rows, itemgetter("chunk")):
        yield chunk, [(row["user_id"], row["history"], row["others"]) for row in users_of_chunk]
