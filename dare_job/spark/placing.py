"""Gives each of tonight's rows its shard, chunk and position, in Spark: arithmetic as ``shards`` has it."""

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dare_job.job import Job
from dare_job.spark import costs, shards

_WHERE = ("wave int, entity string, pool string, start long, length long, parts long, first int, "
          "shards array<int>, head int, tail int, mean int")  # of a pool: its Placement, and costs.means


def place(job: Job, rows: DataFrame) -> tuple[list[tuple[int, int]], DataFrame]:
    """(rows, shards) of each wave, and ``rows`` with ``cost``, ``shard``, ``chunk`` and ``position``.

    Beside what is summed up first, this takes one shuffle, by pool; it is the same whatever the partitions.
    """
    settings, most, token = job.config, job.config.decode.max_new_tokens, costs.per_token(job)
    known, slots = costs.known(rows, most), task_slots(job.spark)
    means = costs.means(known, most)
    record, table = shards.place_waves(
        costs.loads(known, means, token),
        lambda rows: shards.number(rows, slots, settings.decode.batch_size, settings.spark.shards))
    where = job.spark.createDataFrame([(*line, means[line[:3]]) for line in table], _WHERE)
    rows = rows.join(F.broadcast(where), ["wave", "entity", "pool"])
    placed = _placed(rows.withColumn("cost", costs.column(token, most)))
    chunk = F.floor(F.col("position") / settings.spark.rows_per_commit).cast("int")
    return record, placed.withColumn("chunk", chunk)


def task_slots(spark: SparkSession) -> int:
    """Tasks that run at once: by cores, and where tasks ask for GPUs, by those."""
    cores, asked = spark.sparkContext.defaultParallelism, spark.conf.get
    slots = cores // int(asked("spark.task.cpus", "1"))
    gpus, a_task = (float(asked(f"spark.{who}.resource.gpu.amount", "0")) for who in ("executor", "task"))
    if gpus and a_task:
        executors = max(1, cores // int(asked("spark.executor.cores", "1")))
        slots = min(slots, int(executors * gpus / a_task))
    return max(1, slots)


def _placed(rows: DataFrame) -> DataFrame:
    """Add ``shard`` and ``position`` to rows with _WHERE and ``cost``: ``Placement.place``."""
    order = Window.partitionBy("wave", "entity", "pool").orderBy("entity_id")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    last = F.size("shards") - 1
    offset = F.when(F.col("part") == 0, F.col("head")).when(F.col("part") == last, F.col("tail")).otherwise(0)
    return (
        rows.withColumn("rank", F.row_number().over(order) - 1)
        .withColumn("before", F.sum("cost").over(so_far) - F.col("cost"))
        .withColumn("part", F.expr("cast((start + before) * parts div length - first as int)"))
        .withColumn("part", F.least(F.greatest("part", F.lit(0)), last))
        .withColumn("shard", F.get("shards", "part"))
        .withColumn("position", (F.col("rank") + offset).cast("int")))
