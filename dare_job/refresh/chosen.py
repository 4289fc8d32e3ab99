"""Chooses the rows of a run in the stage plan: identical prompts once, and the most valuable under a budget.

The rows stay in Spark: the driver collects a histogram of their order, at most some ten thousand sums. The
choice is written into the plan, so a resumed run does not choose again.
"""

from functools import reduce

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dare_job.config.settings import JobConfig
from dare_job.job import Job
from dare_job.refresh.choice import HASHES, Budget, cut
from dare_job.refresh.worth import BUDGET, RANKS_PER_TIER, hash_of
from dare_job.schemas import ENTITIES, PLAN
from dare_job.spark.tables import read_parquet, write_parquet
from dare_job.storage.paths import AnyPath, is_local

CURVE_POINTS = 100
_ALL = (1 << 30, 0)  # a cut after every row


def equal_prompts_give_equal_texts(config: JobConfig) -> bool:
    """Whether a text depends on its prompt alone, so that rows with equal text keys can share one.

    It does in strict and deterministic decoding. Sampled text depends on the row's id, and text of relaxed
    verification on its drafts: sharing it would give rows another text than they would get alone.
    """
    decode, sampled = config.decode, config.sample.temperature > 0
    if decode.mode == "sample":
        return not sampled
    if decode.mode == "beam":
        return not sampled and not config.beam.single_cache
    return decode.mode != "dare" or config.verify.rule == "strict"


def choose_rows(job: Job, folders: dict[str, AnyPath]) -> dict:
    """Fill ``text_of`` and ``carried_reason`` of the plans in ``folders``; returns the record of the choice.

    Returns
    -------
    user, item
        Counts by entity type: ``chosen``, ``copied``, ``carried`` by reason.
    curve
        Cumulated rows, cost and value of the candidates of both types in the order of writing, if the
        settings ``refresh`` limit the run; ``chosen_rows`` of them are written.
    """
    settings = job.config.refresh
    tables = {entity: _with_leaders(job, entity, folders[entity]) for entity in ENTITIES}
    limited, curve = _budget_is_set(job), None
    end = _ALL
    if settings.is_limited:
        candidates = reduce(DataFrame.unionByName, [_candidates(job, entity, table)
                                                    for entity, (table, _) in tables.items()])
        curve, end = _cut(candidates, settings) if limited else (_histogram(candidates), _ALL)
        curve = _curve(curve, candidates, end) if len(curve) else None
    for entity, (table, copies) in tables.items():
        if limited or copies:
            _rewrite(_decided(job, entity, table, end), folders[entity])
    return {**{entity: _counts(job, folders[entity]) for entity in ENTITIES}, "curve": curve}


def _budget_is_set(job: Job) -> bool:
    settings = job.config.refresh
    return any(limit is not None for limit in (settings.max_rows, settings.max_share, settings.max_tokens))


def _to_write() -> Column:
    """Stale rows with a prompt: only they have a rank. (Reading the prompts themselves takes longer.)"""
    return F.col("rank").isNotNull()


def _with_leaders(job: Job, entity: str, folder: AnyPath) -> tuple[DataFrame, bool]:
    """The plan with ``leader`` (carried_reason, rank, entity_id of the row whose text is shared; null: none).

    The second value tells whether any row has one. Leaders are rows that nothing holds back, lowest rank
    first.
    """
    rows = read_parquet(job.spark, folder)
    if equal_prompts_give_equal_texts(job.config):
        first = F.min(F.struct(F.col("carried_reason").isNotNull().alias("held"), "rank", "entity_id",
                               F.col("carried_reason").alias("reason")))
        columns = ["text_key", "rank", "entity_id", "carried_reason"]
        shared = read_parquet(job.spark, folder, columns=columns)
        shared = shared.where(_to_write()).groupBy("text_key").agg(first.alias("leader"), F.count("*").alias(
            "n")).where("n > 1").drop("n")
        if not shared.isEmpty():
            joined = rows.join(shared, "text_key", "left")
            return joined.withColumn("leader", F.when(_to_write(), F.col("leader"))), True
    empty = "cast(null as struct<held:boolean,rank:int,entity_id:string,reason:string>)"
    return rows.withColumn("leader", F.expr(empty)), False


def _follows() -> Column:
    return F.col("leader").isNotNull() & (F.col("leader.entity_id") != F.col("entity_id"))


def _candidates(job: Job, entity: str, table: DataFrame) -> DataFrame:
    """rank, hash, tokens, cost, value and ``held`` of the rows that need a text of their own."""
    own = table.where(_to_write() & ~_follows())
    return own.select("rank", hash_of(job, entity).alias("hash"), "tokens", "cost", "value",
                      F.col("carried_reason").isNotNull().alias("held"))


def _histogram(candidates: DataFrame, key: str = "rank") -> np.ndarray:
    """Sums by ``key``, ascending: (keys, 5) of key, rows, tokens, cost, value."""
    sums = candidates.where(~F.col("held")).groupBy(key).agg(
        F.count("*"), F.sum("tokens"), F.sum("cost"), F.sum("value")).orderBy(key).collect()
    return np.array([tuple(row) for row in sums], np.float64).reshape(-1, 5)


def _cut(candidates: DataFrame, settings) -> tuple[np.ndarray, tuple[int, int]]:
    """The histogram of ranks, and the (rank, hash) from which on rows are not written."""
    table, rows = _histogram(candidates), settings.max_rows
    if settings.max_share is not None:
        share = int(settings.max_share * candidates.count())
        rows = share if rows is None else min(rows, share)
    budget = Budget(rows, settings.max_tokens)
    ranks, counts, tokens = (table[:, place].astype(np.int64) for place in (0, 1, 2))
    covered = cut(ranks // RANKS_PER_TIER, ranks, counts, tokens, budget)
    if covered == len(table):
        return table, _ALL
    rank = int(ranks[covered])
    inside = _histogram(candidates.where(F.col("rank") == rank), "hash")
    used_rows, used_tokens = counts[:covered].sum(), tokens[:covered].sum()
    rest = Budget(None if rows is None else max(0, rows - used_rows),
                  None if budget.tokens is None else max(0, budget.tokens - used_tokens))
    hashes = inside[:, 0].astype(np.int64)
    more = cut(np.full(len(hashes), rank // RANKS_PER_TIER), hashes, inside[:, 1], inside[:, 2], rest)
    return table, (rank, int(hashes[more]) if more < len(hashes) else HASHES)


def _curve(table: np.ndarray, candidates: DataFrame, end: tuple[int, int]) -> dict:
    """Cumulated rows, cost and value in the order of writing, at most CURVE_POINTS points from 0 on."""
    sums = np.vstack([np.zeros(3), np.cumsum(table[:, [1, 3, 4]], axis=0)])
    places = np.unique(np.linspace(0, len(sums) - 1, CURVE_POINTS).round().astype(int))
    inside = _before(F.col("rank"), F.col("hash"), end)
    chosen = candidates.where(~F.col("held") & inside).agg(
        F.count("*"), F.sum("cost"), F.sum("value")).first()
    rows, costs, values = (sums[places, place] for place in range(3))
    return {"rows": rows.astype(int).tolist(), "cost": costs.astype(int).tolist(),
            "value": [round(number, 3) for number in values.tolist()],
            "chosen_rows": chosen[0], "chosen_cost": chosen[1] or 0, "chosen_value": round(chosen[2] or 0, 3)}


def _before(rank: Column, hashed: Column, end: tuple[int, int]) -> Column:
    return (rank < end[0]) | ((rank == end[0]) & (hashed < end[1]))


def _decided(job: Job, entity: str, table: DataFrame, end: tuple[int, int]) -> DataFrame:
    """The plan with ``text_of``, and BUDGET as the reason of rows after the cut. A copy costs nothing."""
    own = F.coalesce("carried_reason", F.when(
        _to_write() & ~_before(F.col("rank"), hash_of(job, entity), end), BUDGET))
    inside = _before(F.col("leader.rank"), hash_of(job, entity, "leader.entity_id"), end)
    written = ~F.col("leader.held") & inside
    copied = F.when(~written, F.coalesce("carried_reason", "leader.reason", F.lit(BUDGET)))
    return table.withColumns({
        "text_of": F.when(_follows() & written, F.col("leader.entity_id")),
        "carried_reason": F.when(_follows(), copied).otherwise(own)}).select(*PLAN.names)


def _rewrite(table: DataFrame, folder: AnyPath) -> None:
    """Replace the files of ``folder``, from which ``table`` reads."""
    before = [*folder.glob("*.parquet")]
    write_parquet(table, folder, "append")
    for file in before:
        file.unlink()
        if is_local(file):
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum


def _counts(job: Job, folder: AnyPath) -> dict:
    columns = ["stale", "carried_reason", "text_of", "value", "age_days"]
    rows = read_parquet(job.spark, folder, columns=columns)
    reason = F.when(F.col("text_of").isNotNull(), "copied").otherwise(F.coalesce("carried_reason", F.lit(
        "chosen")))
    age = F.when(F.col("age_days").isNull(), -1).otherwise(F.floor(F.log2(F.col("age_days") + 1)))
    groups = rows.where("stale").groupBy(reason.alias("reason"), age.alias("age")).agg(
        F.count("*").alias("rows"), F.sum("value").alias("value")).collect()
    record: dict = {"chosen": 0, "copied": 0, "carried": {}, "value": 0.0, "value_left": 0.0, "ages": {}}
    for row in groups:
        written = row["reason"] in ("chosen", "copied")
        if written:
            record[row["reason"]] += row["rows"]
        else:
            record["carried"][row["reason"]] = record["carried"].get(row["reason"], 0) + row["rows"]
        record["value" if written else "value_left"] += row["value"] or 0.0
        ages = record["ages"].setdefault(age_name(row["age"]), [0, 0])
        ages[not written] += row["rows"]
    return record | {name: round(record[name], 3) for name in ("value", "value_left")}


def age_name(power: int) -> str:
    """Name of a class of ages: "no text", "0 days", "1-2 days", "3-6 days", ..."""
    if power < 0:
        return "no text"
    low, high = 2 ** power - 1, 2 ** (power + 1) - 2
    return f"{low} days" if low == high else f"{low}-{high} days"
