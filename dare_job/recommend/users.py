"""The users to recommend to and their interactions: tables that workers read and drafters learn from."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job.data.history import end_of_date
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.recommend.item_ids import ItemIds
from dare_job.spark.tables import read_parquet, row_count, write_parquet
from dare_job.storage import atomic_folder, paths
from dare_job.storage.paths import AnyPath
from dare_job.workspace import committing, done_record, is_done

_MAX_HISTORIES = 200_000  # that a drafter without a model learns from
ROWS, COUNTS = "rows", "items"


@progress.doing("reading the users' histories")
def prepare(job: Job, source: AnyPath, folder: AnyPath, fingerprint: str) -> dict:
    """Write the tables of users and items, once per fingerprint, and again only if files are damaged.

    ``rows`` holds user_id, chunk, history (items, oldest first) and others (items rated below
    ``history.min_rating``). ``items`` holds item_id and interactions. A user's chunk depends on the user and
    the number of chunks alone.

    Returns the done-record, with the numbers of users and chunks.
    """
    if not is_done(folder, fingerprint) or not _is_readable(folder):
        record: dict = {}
        with committing(folder, fingerprint, record) as staging:
            interactions = _interactions(job, source)
            users = _users(job, source, interactions)
            record["users"] = users.count()
            record["chunks"] = max(1, -(-record["users"] // job.config.recommend.rows_per_commit))
            event = F.struct("timestamp", "item_id")
            histories = interactions.groupBy("user_id").agg(
                F.sort_array(F.collect_set(F.when(F.col("liked"), event))).alias("events"),
                F.collect_set(F.when(~F.col("liked"), F.col("item_id"))).alias("others"))
            interactions = interactions.where("liked")
            chunk = F.pmod(F.xxhash64("user_id"), F.lit(record["chunks"])).cast("int").alias("chunk")
            empty = F.array().cast("array<string>")
            rows = users.join(histories, "user_id", "left").select(
                "user_id", chunk, F.coalesce(F.col("events.item_id"), empty).alias("history"),
                F.coalesce("others", empty).alias("others"))
            write_parquet(rows, staging / ROWS)
            counts = interactions.groupBy("item_id").agg(F.count("*").alias("interactions"))
            write_parquet(counts.coalesce(1), staging / COUNTS)
    return done_record(folder)


def _is_readable(folder: AnyPath) -> bool:
    tables = (atomic_folder.current(folder) / name for name in (ROWS, COUNTS))
    try:
        rows, _ = (sum(paths.map_paths(row_count, table.glob("*.parquet"))) for table in tables)
    except (pa.ArrowException, OSError):
        return False
    return rows == done_record(folder)["users"]


def _interactions(job: Job, source: AnyPath) -> DataFrame:
    table = read_parquet(job.spark, source / "interactions.parquet")
    min_rating = job.config.history.min_rating
    recent = table.where(F.col("timestamp") < end_of_date(job))
    liked = F.lit(True) if min_rating is None else F.col("rating").isNull() | (F.col("rating") >= min_rating)
    return recent.select("user_id", "item_id", "timestamp", liked.alias("liked"))


def _users(job: Job, source: AnyPath, interactions: DataFrame) -> DataFrame:
    """Return user_id of every user of the input, or of the first ``limit`` of them."""
    known = read_parquet(job.spark, source / "users.parquet").select("user_id")
    all_users = known.union(interactions.where("liked").select("user_id")).distinct()
    return all_users if job.limit is None else all_users.orderBy("user_id").limit(job.limit)


def counts(folder: AnyPath, ids: ItemIds) -> np.ndarray:
    """Return the interactions float64 (N,) of each row of the ids."""
    table = paths.parquet_dataset(folder / COUNTS).to_table(columns=["item_id", "interactions"])
    by_item = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return np.array([by_item.get(item, 0) for item in ids.items], np.float64)


def sequences(folder: AnyPath, ids: ItemIds, leaves: np.ndarray) -> list[list[int]]:
    """Return histories of at least two items as leaves; leaves int64 (N,) is the leaf of each row."""
    result = []
    table = paths.parquet_dataset(folder / ROWS)
    for batch in table.to_batches(columns=["history"], filter=pc.list_value_length(pc.field("history")) > 1):
        for history in batch["history"].to_pylist():
            rows = [row for item in history if (row := ids.rows.get(item)) is not None]
            result.append(leaves[rows].tolist())
            if len(result) == _MAX_HISTORIES:
                return result
    return result
