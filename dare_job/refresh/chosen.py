"""Chooses the rows of a run in the stage plan: identical prompts once, and the most valuable under a budget.

The rows stay in Spark: the driver collects histograms of their order, some 100,000 sums at most. The choice
is in the record of the stage, so a resumed run does not choose again.
"""

from functools import reduce

import numpy as np
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from dare_job.config.settings import JobConfig
from dare_job.job import Job
from dare_job.refresh import words
from dare_job.refresh.choice import HASHES, OVERDUE, Budget, cut, sample_end
from dare_job.refresh.worth import BINS_PER_TIER
from dare_job.schemas import COPIES, ENTITIES, PLAN
from dare_job.spark.tables import read_parquet, write_parquet
from dare_job.storage.paths import AnyPath
from dare_job.tables import plan_table, published

CURVE_POINTS = 100
DIGITS = 6  # of values: a text of yesterday whose history has not moved is worth 0.0007
ROWS_IN_MEMORY = 1_000_000  # of which the driver looks for equal text keys: some 100 MB
COUNTED = ("entity_id", "stale", "carried_reason", "rank", "sample", "cost", "value", "age_days")
WRITTEN = ("chosen", "copied")
_HASH_BITS = HASHES.bit_length() - 1
_OTHERS, _OVERDUE = -1, -2  # keys of candidates that are not in the sample


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
    return decode.mode != "dare" or config.verify.is_strict


def choose_rows(job: Job, folder: AnyPath) -> dict:
    """Choose the rows to write from the plan in ``folder``, write COPIES, and return a record of both.

    Returns
    -------
    cut, sample_end
        As in ``plan_table.decided``.
    user, item
        Counts by entity type: ``chosen``, ``copied``, ``carried`` by reason.
    curve
        Cumulated rows, cost and value of the candidates of both types in the order of writing, if the
        settings ``refresh`` limit the run; ``chosen_rows`` of them are written.
    """
    settings = job.config.refresh
    copies = {entity: _write_copies(job, entity, folder) for entity in ENTITIES}
    last_rank, end, table = None, None, np.zeros((0, 5))
    if settings.is_limited:
        candidates = reduce(DataFrame.unionByName, [
            _candidates(job, entity, folder, copies[entity]) for entity in ENTITIES])
        budget = _budget(candidates, settings)
        end, drawn = _sample(candidates, budget)
        others = candidates.where(~F.col("held") & ~plan_table.is_sampled(F.col("sample"), end))
        table = _histogram(others, F.shiftright("rank", _HASH_BITS))
        last_rank = _cut(table, others, budget.without(*drawn[:2]))
        table = np.vstack([[0, *drawn], table])
    changed = {entity: _read(job, entity, folder, *COUNTED).where("stale") for entity in ENTITIES}
    records = counts({entity: plan_table.decided(rows, copies[entity], last_rank, end)
                      for entity, rows in changed.items()})
    curve = _curve(table) | texts_of(records) if table[:, 1:].any() else None
    return {**records, "cut": last_rank, "sample_end": end, "curve": curve}


def _read(job: Job, entity: str, folder: AnyPath, *columns: str) -> DataFrame:
    return read_parquet(job.spark, folder / f"entity={entity}", columns=list(columns))


def _write_copies(job: Job, entity: str, folder: AnyPath) -> DataFrame | None:
    """Write and read COPIES: rows to write with the text key of another row.

    That row is one whose text is not stale, or the one of lowest rank that nothing holds back; if all are
    held back, the first one of the sample.
    None, and no folder, if texts cannot be shared, or if in a plan of at most ROWS_IN_MEMORY rows none are.
    """
    if not equal_prompts_give_equal_texts(job.config) or not _keys_repeat(folder / f"entity={entity}"):
        return None
    target = plan_table.copies_folder(folder, entity)
    rows = _read(job, entity, folder, "entity_id", "text_key", "carried_reason", "rank", "sample", "stale",
                 "age_days")
    to_write, current = F.col("rank").isNotNull(), ~F.col("stale") & F.col("age_days").isNotNull()
    rank = F.when(current, plan_table.CURRENT).when(F.col("carried_reason").isNull(), F.col("rank"))
    rank = rank.otherwise(F.lit(plan_table.HELD) + F.col("sample"))
    free = F.when(rank.isNotNull(), F.struct(rank.alias("written_rank"), F.col("entity_id").alias("text_of"),
                                             F.col("sample").alias("written_sample")))
    rows = rows.where(to_write | current)
    shared = rows.groupBy("text_key").agg(F.min(free).alias("first"), F.count("*").alias("n"))
    shared = shared.where("n > 1 and first is not null").select("text_key", "first.*")
    copies = rows.where(to_write).join(shared, "text_key").where("entity_id != text_of")
    write_parquet(copies.select(*COPIES.names), target)
    return read_parquet(job.spark, target)


def _keys_repeat(folder: AnyPath) -> bool:
    """Whether rows to write may have equal text keys. A large plan is not searched: Spark does that."""
    plan = published.dataset(folder, PLAN)
    if plan.count_rows() > ROWS_IN_MEMORY:
        return True
    to_write, current = pc.field("rank").is_valid(), ~pc.field("stale") & pc.field("age_days").is_valid()
    keys, others = (plan.to_table(columns=["text_key"], filter=rows)["text_key"].combine_chunks()
                    for rows in (to_write, current))
    return len(keys.unique()) < len(keys) or bool(pc.any(pc.is_in(keys, value_set=others)).as_py())


def _candidates(job: Job, entity: str, folder: AnyPath, copies: DataFrame | None) -> DataFrame:
    """rank, sample, tokens, cost, value and ``held`` of the rows that need a text of their own."""
    rows = _read(job, entity, folder, "entity_id", "carried_reason", "rank", "sample", "tokens", "cost",
                 "value")
    own = rows.where(F.col("rank").isNotNull())
    own = own if copies is None else own.join(copies, "entity_id", "left_anti")
    held = F.col("carried_reason").isNotNull()
    return own.select("rank", "sample", "tokens", "cost", "value", held.alias("held"))


def _histogram(candidates: DataFrame, key: Column) -> np.ndarray:
    """Sums by ``key``, ascending: (keys, 5) of key, rows, tokens, cost, value."""
    sums = candidates.groupBy(key.alias("key")).agg(
        F.count("*"), F.sum("tokens"), F.sum("cost"), F.sum("value")).orderBy("key").collect()
    return np.array([tuple(row) for row in sums], np.float64).reshape(-1, 5)


def _budget(candidates: DataFrame, settings) -> Budget:
    rows = settings.max_rows
    if settings.max_share is not None:
        share = int(settings.max_share * candidates.count() + 1e-6)  # 0.29 of 100 is 29
        rows = share if rows is None else min(rows, share)
    return Budget(rows, settings.max_tokens)


def _sample(candidates: DataFrame, budget: Budget) -> tuple[int, np.ndarray]:
    """``sample_end``, and the sums (4,) of the rows below it: rows, tokens, cost, value."""
    is_overdue = F.col("rank") < (OVERDUE + 1) * BINS_PER_TIER * HASHES
    key = F.coalesce("sample", F.when(is_overdue, _OVERDUE).otherwise(_OTHERS))
    table = _histogram(candidates.where(~F.col("held") | F.col("sample").isNotNull()), key)
    keys, sums = table[:, 0].astype(np.int64), table[:, 1:]
    in_sample, late = keys >= 0, keys == _OVERDUE
    others, overdue = sums[~late, :2].sum(0), sums[late, :2].sum(0)
    end = sample_end(keys[in_sample], sums[in_sample, 0], others, overdue, budget)
    return end, sums[in_sample & (keys < end)].sum(0)


def _cut(table: np.ndarray, candidates: DataFrame, budget: Budget) -> int | None:
    """The rank from which on rows are not written, by a histogram of bins of ranks; None: all are written."""
    bins, counts, tokens = (table[:, place].astype(np.int64) for place in range(3))
    covered = cut(bins // BINS_PER_TIER, bins, counts, tokens, budget)
    if covered == len(table):
        return None
    inside = candidates.where(F.shiftright("rank", _HASH_BITS) == int(bins[covered]))
    inside = _histogram(inside, F.col("rank"))
    rest = budget.without(counts[:covered].sum(), tokens[:covered].sum())
    ranks = inside[:, 0].astype(np.int64)
    more = cut(ranks // (BINS_PER_TIER * HASHES), ranks, inside[:, 1], inside[:, 2], rest)
    return int(ranks[more]) if more < len(ranks) else (int(bins[covered]) + 1) * HASHES


def _curve(table: np.ndarray) -> dict:
    """Cumulated rows, cost and value, the sample first and others by rank, at CURVE_POINTS points at most."""
    sums = np.vstack([np.zeros(3), np.cumsum(table[:, [1, 3, 4]], axis=0)])
    places = np.unique(np.linspace(0, len(sums) - 1, CURVE_POINTS).round().astype(int))
    rows, costs, values = (sums[places, place] for place in range(3))
    return {"rows": rows.astype(int).tolist(), "cost": costs.astype(int).tolist(),
            "value": [round(number, DIGITS) for number in values.tolist()]}


def hour_at_previous_rate(job: Job, curve: dict | None) -> float | None:
    """``words.one_more_hour`` at the cost per second of the run before; None if that is not known."""
    manifests = [published.previous_manifest(job, entity) for entity in ENTITIES]
    texts = [(manifest.get("refresh") or {}).get("texts") or {} for manifest in manifests]
    first = next(filter(None, manifests), {})
    return words.one_more_hour(curve, first.get("busy_s"), (first.get("workers") or {}).get("workers"),
                               sum(record.get("cost", 0) for record in texts))


def texts_of(records: dict[str, dict]) -> dict:
    """For the curve, from records of ``counts``: rows, cost and value of the texts of all entity types, and
    the value of all rows that are not written.
    """
    chosen = {f"chosen_{name}": sum(records[entity]["texts"][name] for entity in ENTITIES)
              for name in ("rows", "cost", "value")}
    return chosen | {"left_value": sum(records[entity]["value_left"] for entity in ENTITIES)}


def counts(changed: dict[str, DataFrame]) -> dict[str, dict]:
    """What is written and what is not, from changed rows (COUNTED and ``text_of``), by entity type.

    Returns
    -------
    chosen, copied, carried
        Rows that are written, that share a text, and that are not written, by reason.
    texts
        ``rows``, ``cost`` and expected ``value`` of the prompts that are written: neither copies nor rows
        without a prompt are among them.
    value, value_left
        Expected value of what is written, with copies, and of what is not.
    ages
        By age of the text: rows with a prompt that are written or share a text, and the others.
    """
    reason = F.when(F.col("text_of").isNotNull(), "copied").otherwise(F.coalesce("carried_reason", F.lit(
        "chosen")))
    age = F.when(F.col("age_days").isNull(), -1).otherwise(F.floor(F.log2(F.col("age_days") + 1)))
    rows = reduce(DataFrame.unionByName, [
        table.select(F.lit(entity).alias("entity"), reason.alias("reason"), age.alias("age"), "value", "cost")
        for entity, table in changed.items()])
    groups = rows.groupBy("entity", "reason", "age").agg(
        F.count("*").alias("rows"), F.count("value").alias("texts"), F.sum(
            F.when(F.col("value").isNotNull(), F.col("cost"))).alias("cost"),
        F.coalesce(F.sum("value"), F.lit(0.0)).alias("value")).collect()
    return {entity: _record([group for group in groups if group["entity"] == entity]) for entity in changed}


def _record(groups: list[Row]) -> dict:
    """What ``counts`` returns of one entity type."""
    by_reason: dict[str, int] = {}
    ages: dict[str, list[int]] = {}
    for group in groups:
        by_reason[group["reason"]] = by_reason.get(group["reason"], 0) + group["rows"]
        if group["texts"]:  # rows without a prompt have no text to write
            written = group["reason"] in WRITTEN
            ages.setdefault(age_name(group["age"]), [0, 0])[not written] += group["texts"]
    own = [group for group in groups if group["reason"] == "chosen"]
    value = sum(group["value"] for group in groups if group["reason"] in WRITTEN)
    left = sum(group["value"] for group in groups if group["reason"] not in WRITTEN)
    return {**{name: by_reason.pop(name, 0) for name in WRITTEN}, "carried": by_reason,
            "texts": {"rows": sum(group["texts"] for group in own),
                      "cost": sum(group["cost"] or 0 for group in own),
                      "value": round(sum(group["value"] for group in own), DIGITS)},
            "value": round(value, DIGITS), "value_left": round(left, DIGITS), "ages": ages}


def age_name(power: int) -> str:
    """Name of a class of ages: "no text", "0 days", "1-2 days", "3-6 days", ..."""
    if power < 0:
        return "no text"
    low, high = 2 ** power - 1, 2 ** (power + 1) - 2
    return f"{low} days" if low == high else f"{low}-{high} days"
