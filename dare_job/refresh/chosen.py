"""Chooses the rows of a run in the stage plan: identical prompts once, and the most valuable under a budget.

The rows stay in Spark: the driver collects a histogram of their order, at most some ten thousand sums. The
choice is in the record of the stage, so a resumed run does not choose again.
"""

from functools import reduce

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dare_job.config.settings import JobConfig
from dare_job.job import Job
from dare_job.refresh.choice import HASHES, Budget, cut
from dare_job.refresh.worth import BINS_PER_TIER
from dare_job.schemas import COPIES, ENTITIES
from dare_job.spark.tables import read_parquet, write_parquet
from dare_job.storage.paths import AnyPath
from dare_job.tables import plan_table

CURVE_POINTS = 100
_HASH_BITS = HASHES.bit_length() - 1


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


def choose_rows(job: Job, folder: AnyPath) -> dict:
    """Choose the rows to write from the plan in ``folder``, write COPIES, and return a record of both.

    Returns
    -------
    cut
        Rows from this rank on are not written; None: all are.
    user, item
        Counts by entity type: ``chosen``, ``copied``, ``carried`` by reason.
    curve
        Cumulated rows, cost and value of the candidates of both types in the order of writing, if the
        settings ``refresh`` limit the run; ``chosen_rows`` of them are written.
    """
    settings = job.config.refresh
    copies = {entity: _write_copies(job, entity, folder) for entity in ENTITIES}
    curve = cut = None
    if settings.is_limited:
        candidates = reduce(DataFrame.unionByName, [
            _candidates(job, entity, folder, copies[entity]) for entity in ENTITIES])
        table = _histogram(candidates, F.shiftright("rank", _HASH_BITS))
        cut = _cut(table, candidates, settings)
        curve = _curve(table, candidates, cut) if len(table) else None
    return {**{entity: _counts(job, entity, folder, copies[entity], cut) for entity in ENTITIES}, "cut": cut,
            "curve": curve}


def _read(job: Job, entity: str, folder: AnyPath, *columns: str) -> DataFrame:
    return read_parquet(job.spark, folder / f"entity={entity}", columns=list(columns))


def _write_copies(job: Job, entity: str, folder: AnyPath) -> DataFrame:
    """Write and read COPIES: rows with the text key of a row of lower rank that nothing holds back."""
    target = plan_table.copies_folder(folder, entity)
    rows = _read(job, entity, folder, "entity_id", "text_key", "carried_reason", "rank")
    rows = rows.where(F.col("rank").isNotNull())  # stale, and with a prompt
    if not equal_prompts_give_equal_texts(job.config):
        rows = rows.where(F.lit(False))
    free = F.when(F.col("carried_reason").isNull(), F.struct(F.col("rank").alias("written_rank"),
                                                             F.col("entity_id").alias("text_of")))
    shared = rows.groupBy("text_key").agg(F.min(free).alias("first"), F.count("*").alias("n"))
    shared = shared.where("n > 1 and first is not null").select("text_key", "first.*")
    found = rows.join(shared, "text_key").where("entity_id != text_of").select(*COPIES.names)
    write_parquet(found, target)
    return read_parquet(job.spark, target)


def _candidates(job: Job, entity: str, folder: AnyPath, copies: DataFrame) -> DataFrame:
    """rank, tokens, cost, value and ``held`` of the rows that need a text of their own."""
    rows = _read(job, entity, folder, "entity_id", "carried_reason", "rank", "tokens", "cost", "value")
    own = rows.where(F.col("rank").isNotNull()).join(copies, "entity_id", "left_anti")
    return own.select("rank", "tokens", "cost", "value", F.col("carried_reason").isNotNull().alias("held"))


def _histogram(candidates: DataFrame, key: Column) -> np.ndarray:
    """Sums by ``key``, ascending, of rows not held: (keys, 5) of key, rows, tokens, cost, value."""
    sums = candidates.where(~F.col("held")).groupBy(key.alias("key")).agg(
        F.count("*"), F.sum("tokens"), F.sum("cost"), F.sum("value")).orderBy("key").collect()
    return np.array([tuple(row) for row in sums], np.float64).reshape(-1, 5)


def _cut(table: np.ndarray, candidates: DataFrame, settings) -> int | None:
    """The rank from which on rows are not written, by a histogram of bins of ranks; None: all are written."""
    rows = settings.max_rows
    if settings.max_share is not None:
        share = int(settings.max_share * candidates.count())
        rows = share if rows is None else min(rows, share)
    bins, counts, tokens = (table[:, place].astype(np.int64) for place in range(3))
    covered = cut(bins // BINS_PER_TIER, bins, counts, tokens, Budget(rows, settings.max_tokens))
    if covered == len(table):
        return None
    inside = candidates.where(F.shiftright("rank", _HASH_BITS) == int(bins[covered]))
    inside = _histogram(inside, F.col("rank"))
    used_rows, used_tokens = counts[:covered].sum(), tokens[:covered].sum()
    rest = Budget(None if rows is None else max(0, rows - used_rows),
                  None if settings.max_tokens is None else max(0, settings.max_tokens - used_tokens))
    ranks = inside[:, 0].astype(np.int64)
    more = cut(ranks // (BINS_PER_TIER * HASHES), ranks, inside[:, 1], inside[:, 2], rest)
    return int(ranks[more]) if more < len(ranks) else (int(bins[covered]) + 1) * HASHES


def _curve(table: np.ndarray, candidates: DataFrame, end: int | None) -> dict:
    """Cumulated rows, cost and value in the order of writing, at most CURVE_POINTS points from 0 on."""
    sums = np.vstack([np.zeros(3), np.cumsum(table[:, [1, 3, 4]], axis=0)])
    places = np.unique(np.linspace(0, len(sums) - 1, CURVE_POINTS).round().astype(int))
    inside = F.lit(True) if end is None else F.col("rank") < end
    chosen = candidates.where(~F.col("held") & inside).agg(
        F.count("*"), F.sum("cost"), F.sum("value")).first()
    rows, costs, values = (sums[places, place] for place in range(3))
    return {"rows": rows.astype(int).tolist(), "cost": costs.astype(int).tolist(),
            "value": [round(number, 3) for number in values.tolist()],
            "chosen_rows": chosen[0], "chosen_cost": chosen[1] or 0, "chosen_value": round(chosen[2] or 0, 3)}


def _counts(job: Job, entity: str, folder: AnyPath, copies: DataFrame, end: int | None) -> dict:
    rows = _read(job, entity, folder, "entity_id", "stale", "carried_reason", "rank", "value", "age_days")
    return counts(plan_table.decided(rows.where("stale"), copies, end))


def counts(rows: DataFrame) -> dict:
    """What is written and what is not, from changed rows with the columns of ``plan_table.read``.

    Returns
    -------
    chosen, copied, carried
        Rows that are written, that share a text, and that are not written, by reason.
    value, value_left
        Expected value of what is written and of what is not.
    ages
        By age of the text: rows that are written or share a text, and the others.
    """
    reason = F.when(F.col("text_of").isNotNull(), "copied").otherwise(F.coalesce("carried_reason", F.lit(
        "chosen")))
    age = F.when(F.col("age_days").isNull(), -1).otherwise(F.floor(F.log2(F.col("age_days") + 1)))
    groups = rows.groupBy(reason.alias("reason"), age.alias("age")).agg(
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
