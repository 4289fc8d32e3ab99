"""Assigns each row of a run to a shard, chunk and position, in Spark, by estimated cost (``sharding``).

The unit of cost is one prompt token. A decoding step of a row costs about eight of them and emits as many
tokens as in the previous run. The length of a text is estimated by the row's previous text, else by the mean
of its pool's rows in this run, else by the mean of its entity type. All costs are integers, so sums do not
depend on the partitioning.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dare_job.generate import sharding
from dare_job.generate.sharding import Load
from dare_job.job import Job
from dare_job.refresh import acceptance
from dare_job.refresh.value import CHARACTERS_PER_TOKEN, STEP_COST
from dare_job.schemas import ENTITIES
from dare_job.tables import published


@dataclass(frozen=True)
class PoolStatistics:
    """Statistics of the rows of one pool.

    Attributes
    ----------
    rows
        Number of rows.
    prompted
        Rows with a prompt; rows without one cost almost nothing.
    prompt_tokens
        Tokens of the prompts.
    old_rows, old_tokens
        Rows with a prompt and a previous text, and the tokens of these texts.
    """

    rows: int
    prompted: int
    prompt_tokens: int
    old_rows: int
    old_tokens: int


def text_token_cost(job: Job) -> int:
    """Cost of a generated token, at least 1, from the previous run's steps if it used the same mode."""
    decode, sums = job.config.decode, {"tokens": 0, "target_steps": 0}
    default = acceptance.default_rate(decode)
    if default == 1.0:
        return STEP_COST
    for entity in ENTITIES:
        written = published.previous_manifest(job, entity)
        if written.get("mode") == decode.mode:
            sums = {name: total + written["totals"][name] for name, total in sums.items()}
    return token_cost(sums["tokens"] / sums["target_steps"] if sums["target_steps"] else default)


def token_cost(per_step: float) -> int:
    """Cost of a generated token at ``per_step`` tokens per step."""
    return max(1, round(STEP_COST / max(1.0, per_step)))


def pool_statistics(rows: DataFrame, max_tokens: int) -> dict[tuple, PoolStatistics]:
    """Statistics by (wave, entity type, pool). ``max_tokens``: maximum tokens of a text."""
    old, prompted = _previous_tokens(max_tokens), _has_prompt()
    counts = rows.groupBy("wave", "entity", "pool").agg(
        F.count("*"), F.count_if(prompted), F.sum(F.when(prompted, _prompt_tokens()).otherwise(0)),
        F.count(old), F.coalesce(F.sum(old), F.lit(0))).collect()
    return {tuple(row[:3]): PoolStatistics(*row[3:]) for row in counts}


def mean_tokens(pools: Mapping[tuple, PoolStatistics], max_tokens: int) -> dict[tuple, int]:
    """Estimated tokens of a row without a previous text, at least 1, by the same keys.

    ``max_tokens`` is the estimate if no row of the entity type has a previous text.
    """
    overall = {entity: _mean_tokens([pool for key, pool in pools.items() if key[1] == entity])
               for entity in {key[1] for key in pools}}
    means = {key: _mean_tokens([pool]) or overall[key[1]] or max_tokens for key, pool in pools.items()}
    return {key: max(1, tokens) for key, tokens in means.items()}


def pool_loads(pools: Mapping[tuple, PoolStatistics], means: Mapping[tuple, int],
               token_cost: int) -> dict[tuple, Load]:
    """Rows and their cost by the same keys. ``token_cost``: cost of a generated token."""
    return {key: Load(pool.rows, pool.rows + pool.prompt_tokens + token_cost * (
        pool.old_tokens + (pool.prompted - pool.old_rows) * means[key])) for key, pool in pools.items()}


def cost_column(token_cost: int, max_tokens: int) -> Column:
    """Cost of a row, at least 1. Column ``mean`` holds the estimate of ``mean_tokens``."""
    text = token_cost * F.coalesce(_previous_tokens(max_tokens), F.col("mean"))
    return F.when(_has_prompt(), 1 + _prompt_tokens() + text).otherwise(1).cast("long")


def _has_prompt() -> Column:
    return F.col("prompt").isNotNull() & F.col("error").isNull()


def _prompt_tokens() -> Column:
    """Approximate number of prompt tokens."""
    return F.floor(F.length("prompt") / CHARACTERS_PER_TOKEN)


def _previous_tokens(max_tokens: int) -> Column:
    """Tokens of a row's previous text; null if it has no previous text or no prompt."""
    return F.when(_has_prompt() & (F.size("own_ids") > 0), F.least(F.size("own_ids"), F.lit(max_tokens)))


def _mean_tokens(pools: Iterable[PoolStatistics]) -> int:
    rows, tokens = (sum(getattr(pool, name) for pool in pools) for name in ("old_rows", "old_tokens"))
    return tokens // rows if rows else 0


# of a pool: its PoolAssignment and mean_tokens
_ASSIGNMENT = ("wave int, entity string, pool string, start long, length long, parts long, first int, "
               "shards array<int>, head int, tail int, mean int")


def assign_rows(job: Job, rows: DataFrame) -> tuple[list[tuple[int, int]], DataFrame]:
    """Assign rows to shards.

    Takes one aggregation and one shuffle by pool. The result does not depend on the partitioning.

    Returns
    -------
    waves : list of (int, int)
        Number of rows and of shards of each wave.
    rows : DataFrame
        With the columns ``cost``, ``shard``, ``chunk`` and ``position``.
    """
    settings, cost = job.config, text_token_cost(job)
    max_tokens, slots = settings.decode.max_new_tokens, task_slots(job.spark)
    pools = pool_statistics(rows, max_tokens)
    means = mean_tokens(pools, max_tokens)
    record, table = sharding.assign_waves(
        pool_loads(pools, means, cost),
        lambda rows: sharding.shard_count(rows, slots, settings.decode.batch_size, settings.spark.shards))
    assignment = job.spark.createDataFrame([(*line, means[line[:3]]) for line in table], _ASSIGNMENT)
    rows = rows.join(F.broadcast(assignment), ["wave", "entity", "pool"])
    placed = _with_positions(rows.withColumn("cost", cost_column(cost, max_tokens)))
    chunk = F.floor(F.col("position") / settings.spark.rows_per_commit).cast("int")
    return record, placed.withColumn("chunk", chunk)


def task_slots(spark: SparkSession) -> int:
    """Number of concurrent tasks, limited by cores, and by GPUs if tasks request them."""
    cores, setting = spark.sparkContext.defaultParallelism, spark.conf.get
    slots = cores // int(setting("spark.task.cpus", "1"))
    gpus, gpus_per_task = (float(setting(f"spark.{role}.resource.gpu.amount", "0"))
                           for role in ("executor", "task"))
    if gpus and gpus_per_task:
        executors = max(1, cores // int(setting("spark.executor.cores", "1")))
        slots = min(slots, int(executors * gpus / gpus_per_task))
    return max(1, slots)


def _with_positions(rows: DataFrame) -> DataFrame:
    """Add ``shard`` and ``position`` of each row by its ``PoolAssignment``."""
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
