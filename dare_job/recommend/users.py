"""Who gets a list tonight, and what each has taken: a table that workers read and drafters learn from."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job.data.history import end_of_day
from dare_job.job import Job
from dare_job.recommend.item_ids import ItemIds
from dare_job.spark.tables import read_parquet, row_count, write_parquet
from dare_job.storage import atomic, paths
from dare_job.storage.paths import AnyPath
from dare_job.workspace import committing, done_record, is_done

_MAX_HISTORIES = 200_000  # histories that a drafter without a model learns from, at most
ROWS, COUNTS = "rows", "items"


def prepare(job: Job, source: AnyPath, folder: AnyPath, fingerprint: str) -> dict:
    """Tables ``rows`` (user_id, chunk, history: items, the oldest first, others: taken too, and rated below
    ``history.min_rating``) and ``items`` (item_id, interactions) in a folder; its done-record: users, chunks.
    Written once for a fingerprint, unless files of it are damaged: the same users then get the same chunks.
    """
    if not is_done(folder, fingerprint) or not _is_readable(folder):
        record: dict = {}
        with committing(folder, fingerprint, record) as staging:
            taken = _interactions(job, source)
            everybody = _users(job, source, taken)
            record["users"] = everybody.count()
            record["chunks"] = max(1, -(-record["users"] // job.config.recommend.rows_per_commit))
            event = F.struct("timestamp", "item_id")
            histories = taken.groupBy("user_id").agg(
                F.sort_array(F.collect_set(F.when(F.col("liked"), event))).alias("events"),
                F.collect_set(F.when(~F.col("liked"), F.col("item_id"))).alias("others"))
            taken = taken.where("liked")
            chunk = F.pmod(F.xxhash64("user_id"), F.lit(record["chunks"])).cast("int").alias("chunk")
            none = F.array().cast("array<string>")
            rows = everybody.join(histories, "user_id", "left").select(
                "user_id", chunk, F.coalesce(F.col("events.item_id"), none).alias("history"),
                F.coalesce("others", none).alias("others"))
            write_parquet(rows, staging / ROWS)
            counts = taken.groupBy("item_id").agg(F.count("*").alias("interactions"))
            write_parquet(counts.coalesce(1), staging / COUNTS)
    return done_record(folder)


def _is_readable(folder: AnyPath) -> bool:
    tables = (atomic.current(folder) / name for name in (ROWS, COUNTS))
    try:
        rows, _ = (sum(paths.map_paths(row_count, table.glob("*.parquet"))) for table in tables)
    except (pa.ArrowException, OSError):
        return False
    return rows == done_record(folder)["users"]


def _interactions(job: Job, source: AnyPath) -> DataFrame:
    table = read_parquet(job.spark, source / "interactions.parquet")
    least = job.config.history.min_rating
    kept = table.where(F.col("timestamp") < end_of_day(job.space.day))
    liked = F.lit(True) if least is None else F.col("rating").isNull() | (F.col("rating") >= least)
    return kept.select("user_id", "item_id", "timestamp", liked.alias("liked"))


def _users(job: Job, source: AnyPath, taken: DataFrame) -> DataFrame:
    """user_id of every user of the input, or of the first ``limit`` of them."""
    known = read_parquet(job.spark, source / "users.parquet").select("user_id")
    every = known.union(taken.where("liked").select("user_id")).distinct()
    return every if job.limit is None else every.orderBy("user_id").limit(job.limit)


def counts(folder: AnyPath, ids: ItemIds) -> np.ndarray:
    """Interactions float64 (N,) of each row of the ids."""
    table = paths.parquet_dataset(folder / COUNTS).to_table()
    found = np.zeros(len(ids.items))
    for item, number in zip(table["item_id"].to_pylist(), table["interactions"].to_pylist(), strict=True):
        if (row := ids.rows.get(item)) is not None:
            found[row] = number
    return found


def sequences(folder: AnyPath, ids: ItemIds, leaves: np.ndarray) -> list[list[int]]:
    """Histories with two items or more as leaves; leaves int64 (N,): of each row."""
    found = []
    table = paths.parquet_dataset(folder / ROWS)
    for batch in table.to_batches(columns=["history"], filter=pc.list_value_length(pc.field("history")) > 1):
        for history in batch["history"].to_pylist():
            rows = [row for item in history if (row := ids.rows.get(item)) is not None]
            found.append(leaves[rows].tolist())
            if len(found) == _MAX_HISTORIES:
                return found
    return found
