"""Lists in Spark tasks, committed chunk by chunk: a killed run goes on with the chunks that are missing.

    _work/dt=D/recommend/<fingerprint>/chunks/part-<chunk>.parquet     tables.CANDIDATES

Which users a chunk holds is settled before (``users.prepare``), so a second attempt of a task, beside the
first or after it, replaces a file by one of the same users.
"""

import os
import socket
import time
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from dare_job import files
from dare_job.files import AnyPath
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.recommend import users
from dare_job.recommend.task import RecommendTask, loaded
from dare_job.spark import executors, model_workers
from dare_job.spark.reading import read_parquet
from dare_job.tables import CANDIDATES

_TASKS_A_SLOT = 4
_STATS = pa.schema([("chunk", pa.int64()), ("users", pa.int64()), ("busy_s", pa.float64()),
                    ("worker", pa.string())])
Batches = Iterator[pa.RecordBatch]


def committed(folder: AnyPath) -> set[int]:
    """Numbers of the chunks that are there."""
    return {int(path.stem.split("-")[1]) for path in folder.glob("part-*.parquet")}


def write(job: Job, task: RecommendTask, count: int, people: int) -> list[dict]:
    """Write the missing ones of ``count`` chunks of so many users; what this run's workers say of each."""
    target = files.path(task.chunks)
    files.make_folder(target)
    for path in target.glob(".*.partial"):
        path.unlink(missing_ok=True)
    missing = sorted(set(range(count)) - committed(target))
    if not missing:
        return []
    wanted = job.spark.createDataFrame([(number,) for number in missing], "chunk int")
    columns = "user_id", "chunk", "history"
    rows = read_parquet(job.spark, files.path(task.users) / users.ROWS, columns=columns)
    slots = job.spark.sparkContext.defaultParallelism
    tasks = min(len(missing), _TASKS_A_SLOT * slots)
    cut = rows.join(F.broadcast(wanted), "chunk", "left_semi").select(*columns)
    cut = cut.repartition(tasks, "chunk").sortWithinPartitions("chunk", "user_id")

    def write_all(batches: Batches) -> Batches:
        yield from write_chunks(batches, task)

    schema = "chunk long, users long, busy_s double, worker string"
    each = people / count  # about: a hash cuts them
    counted = progress.counting("lists of users", round(each * len(missing)),
                                lambda: round(each * (len(committed(target)) - count + len(missing))))
    with counted, executors.failing_plainly():
        return model_workers.map_rows(cut, write_all, schema, "recommender").toArrow().to_pylist()


def write_chunks(batches: Batches, task: RecommendTask) -> Batches:
    """Runs in a Spark task: a file for each chunk, and its figures."""
    writer, target = loaded(task), files.path(task.chunks)
    worker = f"{socket.gethostname()}:{os.getpid()}"
    for chunk, rows in _by_chunk(batches):
        path = target / f"part-{chunk:06d}.parquet"
        if path.exists():  # an earlier attempt of this task wrote it
            continue
        began = time.perf_counter()
        table = pa.Table.from_pylist([row | {"run_id": task.run_id} for row in writer.rows(rows)], CANDIDATES)
        with files.writing(path, f".{path.name}.{uuid.uuid4().hex}.partial") as file:
            pq.write_table(table, file, compression="zstd")
        said = {"chunk": chunk, "users": len(rows), "busy_s": time.perf_counter() - began, "worker": worker}
        yield pa.RecordBatch.from_pylist([said], schema=_STATS)


def _by_chunk(batches: Batches) -> Iterator[tuple[int, list[tuple[str, list[str]]]]]:
    """Users of each chunk, of batches sorted by chunk."""
    number, waiting = None, []
    for batch in batches:
        for row in batch.to_pylist():
            if number is not None and row["chunk"] != number:
                yield number, waiting
                waiting = []
            number = row["chunk"]
            waiting.append((row["user_id"], row["history"]))
    if waiting:
        yield number, waiting
