"""What writing a row is worth, as Spark columns of the stage plan: tier, score, and what holds a row back.

A row with a prompt that changed is in one of three tiers (``choice``): texts older than ``refresh.max_days``,
rows without a text, and the rest by value. 2 % of the rest are in a seeded sample, which keeps later
estimates of the value unbiased: it is written also where its value is low. A budget covers as many rows of it
as make 2 % of all rows that it covers.
"""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dare_job.job import Job
from dare_job.refresh import acceptance, choice, learned
from dare_job.refresh.learned import Coefficients
from dare_job.refresh.value import (
    CHARACTERS_PER_TOKEN,
    cost,
    new_share,
    value,
)
from dare_job.schemas import TRAFFIC
from dare_job.tables import published

UNDATED_DAYS = 20  # age of a text whose date is missing or unreadable
MAX_BACKOFF = 6  # a row that failed N times waits 2^min(N, MAX_BACKOFF) days
GROWN = 1.5  # a prompt that has grown by more than this factor has other tokens than the previous one
BINS_PER_TIER, FIRST_BIN = 8192, 4096

# Reasons for which a changed row is carried over, whatever the budget.
FAILED, FEW_NEW, RECENT = "failed before", "few new interactions", "written recently"

# Columns of the previous texts that ``add_worth`` needs.
OF_TEXTS = ("generated_dt", "text_interactions", "failures", "failed_dt", "tokens", "target_steps",
            "prompt_tokens", "prompt_set", "pool")


def add_worth(job: Job, entity: str, rows: DataFrame, day_s: int, pool_kind: Column) -> DataFrame:
    """Add the columns of PLAN from ``carried_reason`` to ``rank``.

    Parameters
    ----------
    rows
        Columns of PLAN, ``times`` of the history and ``moved`` (``ItemVectors.moved``), ``has_text`` (a
        previous text), OF_TEXTS of the previous row as a struct ``old``, ``same_text`` (it has this text
        key), and ``same_writer`` (model and settings are those that the text was written with).
    day_s
        Seconds from midnight (UTC) to the end of a date in the zone of the input; negative east of it.
    pool_kind
        The kind of pool that a row will most likely draft from: the stage that chooses pools follows.
    """
    to_write, text = F.col("stale") & F.col("prompt").isNotNull(), F.col("has_text")
    age = F.coalesce(_days_since(job, "old.generated_dt"), F.lit(UNDATED_DAYS))
    rows = rows.withColumns({
        "unseen_interactions": F.when(text, _unseen(day_s)).cast("int"),
        "age_days": F.when(text, F.greatest(F.lit(0), age)).cast("int"),
        "prompt_tokens": _prompt_tokens(job, entity)})
    rows, per_step = _with_rate(job, entity, rows, pool_kind)
    text_tokens, steps = _expected(job, entity, per_step)
    rows = rows.withColumns({
        "distance": _distance().cast("float"),
        "cost": F.ceil(cost(F.col("prompt_tokens"), steps)).cast("long"),
        "tokens": (F.col("prompt_tokens") + text_tokens).cast("long")})
    rows = rows.withColumn("value", F.when(to_write, _value(job, entity)))
    bins = _tier(job) * BINS_PER_TIER + FIRST_BIN + score_bin(_score(job.config.refresh.priority))
    rows = rows.withColumns({
        "carried_reason": F.when(to_write, _held_back(job, entity)),
        "rank": F.when(to_write, bins * choice.HASHES + hash_of(job, entity)).cast("long")})
    may_be_sampled = to_write & text & ~_overdue(job) & ~F.col("carried_reason").eqNullSafe(FAILED)
    return rows.withColumn("sample", F.when(may_be_sampled, _sample_key(job, entity)).cast("int"))


def _prompt_tokens(job: Job, entity: str) -> Column:
    """Tokens of the prompt: of the previous one, unless that was another prompt set's or is much shorter."""
    estimated = F.floor(F.length("prompt") / CHARACTERS_PER_TOKEN)
    before = F.when(~_rewritten(job, entity), F.col("old.prompt_tokens"))
    return F.when(before * GROWN >= estimated, before).otherwise(estimated)


def _unseen(day_s: int) -> Column:
    """Interactions that a text does not know; null if that is not known.

    The number of all interactions has grown by them, unless the input forgets old ones. So at least those of
    the history that are later than the text's date count.
    """
    known = F.col("old.text_interactions").isNotNull()
    more = F.when(known, F.greatest(F.lit(0), F.col("interactions") - F.col("old.text_interactions")))
    after = (F.unix_date(F.col("old.generated_dt").try_cast("date")).cast("long") + 1) * 86_400 + day_s
    later = F.size(F.filter("times", lambda time: time >= after))
    return F.greatest(more, F.when(known & F.col("times").isNotNull(), later))


def score_bin(score: Column) -> Column:
    """``choice.score_bin`` of a column."""
    clipped = F.least(F.greatest(score, F.lit(choice.MIN_SCORE)), F.lit(choice.MAX_SCORE))
    return -F.floor(F.log2(clipped) * choice.BINS_PER_DOUBLING)


def hash_of(job: Job, entity: str, purpose: str = "order") -> Column:
    """Seeded hash of an id (0 to ``choice.HASHES`` - 1), another one on each date."""
    salt = F.lit(f"{job.config.seed} {job.space.dt} {entity} {purpose}")
    return F.pmod(F.xxhash64("entity_id", salt), F.lit(choice.HASHES)).cast("int")


def _days_since(job: Job, column: str) -> Column:
    return F.datediff(F.lit(job.space.dt).cast("date"), F.col(column).try_cast("date"))


def _age() -> Column:
    """Days since the text was written; 0 without one."""
    return F.coalesce("age_days", F.lit(0.0))


def learned_coefficients(job: Job) -> Coefficients | None:
    """Coefficients of the file that ``refresh.priority`` names; None for a priority by name.

    Raises
    ------
    ConfigError
        The file cannot be read, or holds something else.
    """
    priority = job.config.refresh.priority
    return learned.read(Path(priority)) if priority.endswith(".json") else None


def uses_vectors(job: Job) -> bool:
    """Whether the value of a user depends on the vectors of items."""
    settings, coefficients = job.config.refresh, learned_coefficients(job)
    return settings.has_budget and (
        settings.priority == "value" or coefficients is not None and coefficients.distance > 0)


def shown_entries(job: Job) -> int:
    """Entries of a history that a prompt shows at most."""
    return min(job.config.history.max_items, job.config.prompt_set("user").max_history)


def _rewritten(job: Job, entity: str) -> Column:
    """Whether the text was written by another model, with other settings or with another prompt set."""
    prompts = F.col("old.prompt_set") == job.config.prompt_set(entity).version_hash
    return ~(F.col("same_writer") & F.coalesce(prompts, F.lit(True)))


def _value(job: Job, entity: str) -> Column:
    """The value by the formula, or by learned coefficients.

    Nothing of a text holds after a change of model, settings or prompt set, or if it is an item's: another
    prompt without a history is about something else. A text of which nobody knows what it has seen counts as
    one that knows nothing of the history that the prompt shows.
    """
    void = ~F.col("has_text") | (~F.col("same_text") & (_rewritten(job, entity) | F.lit(entity == "item")))
    shown = F.least(F.greatest(F.col("interactions"), F.lit(1)), F.lit(shown_entries(job)))
    new = new_share(F.least(F.col("unseen_interactions"), shown).cast("double"), shown.cast("double"))
    new = F.when(void, 1.0).otherwise(F.coalesce(new, F.lit(1.0)))
    impressions = F.expr(f"try_cast(try_element_at(attributes, '{TRAFFIC}') as double)")
    finite = ~F.isnan(impressions) & (impressions < F.lit(float("inf")))
    impressions = F.when(finite, F.greatest(F.lit(0.0), impressions))
    of_void = F.when(void, F.col("interactions").cast("double"))
    traffic = F.coalesce(impressions, of_void, F.lit(0.0))
    coefficients, no_text = learned_coefficients(job), void.cast("double")
    of_all_new = F.when(F.col("unseen_interactions").isNull(), F.try_element_at("moved", F.lit(-1)))
    distance = F.coalesce("distance", of_all_new, F.lit(0.0)).cast("double")
    if coefficients is None:
        return value(traffic, new, _age(), no_text, distance)
    return learned.value(traffic, new, _age(), no_text, distance, coefficients)


def _distance() -> Column:
    """How far the mean vector of the history moved since the text; null if that is not known."""
    place = F.least(F.array_size("moved"), F.col("unseen_interactions") + 1)  # least skips nulls
    return F.when(F.col("unseen_interactions").isNotNull(), F.try_element_at("moved", place))


def _with_rate(job: Job, entity: str, rows: DataFrame, pool_kind: Column) -> tuple[DataFrame, Column]:
    """The rows, and the tokens per step of a row whose previous text says nothing about its steps.

    Of rows that had none in the newest run that wrote enough of them: of the row's pool in that run, else of
    ``pool_kind``, else of all. Of a row with a text by the same writer, whose steps are not known (it came
    with the input, or is a copy): of all texts of the previous run.
    """
    manifest, mode = published.previous_manifest(job, entity), job.config.decode.mode
    totals = manifest.get("totals") or {} if manifest.get("mode", mode) == mode else {}
    mean = (totals["tokens"] / totals["target_steps"] if totals.get("target_steps")
            else acceptance.default_rate(job.config.decode))
    rates = acceptance.rates(manifest.get(acceptance.KEY), mode, mean)
    rate = F.coalesce(*[F.when(pool_kind == kind, value) for kind, value in rates.kinds.items()],
                      F.lit(rates.overall))
    if rates.pools:
        names = pa.table({"rated_pool": [*rates.pools], "rate": [*rates.pools.values()]})
        pool = F.when(F.col("old.generated_dt") == rates.date, F.col("old.pool"))
        rows = rows.join(F.broadcast(job.spark.createDataFrame(names)), pool == F.col("rated_pool"), "left")
        rate = F.coalesce("rate", rate)
    return rows, F.when(F.col("has_text") & ~_rewritten(job, entity), mean).otherwise(rate)


def _expected(job: Job, entity: str, per_step: Column) -> tuple[Column, Column]:
    """Tokens and decoding steps of a row's text: of its previous text, else the last run's mean.

    A text of another model, other settings or another prompt set says nothing about the length of the next.
    """
    manifest, longest = published.previous_manifest(job, entity), job.config.decode.max_new_tokens
    totals, written = manifest.get("totals") or {}, (manifest.get("counts") or {}).get("written")
    mean = totals["tokens"] / written if written and totals.get("tokens") else longest
    same = ~_rewritten(job, entity)
    tokens = F.least(F.coalesce(F.when(same, F.col("old.tokens")), F.lit(round(mean))), F.lit(longest))
    return tokens, F.coalesce(F.when(same, F.col("old.target_steps")), F.ceil(tokens / per_step))


def _sample_key(job: Job, entity: str) -> Column:
    """Key of one row in ``SAMPLE_ONE_IN``; null of the others."""
    key = hash_of(job, entity, purpose="sample")
    return F.when(key % choice.SAMPLE_ONE_IN == 0, key)


def _tier(job: Job) -> Column:
    return F.when(_overdue(job), choice.OVERDUE).when(~F.col("has_text"), choice.NO_TEXT).otherwise(
        choice.BY_VALUE)


def _overdue(job: Job) -> Column:
    limit = job.config.refresh.max_days
    return F.lit(False) if limit is None else F.col("has_text") & (_age() >= limit)


def _score(priority: str) -> Column:
    named = {"new_interactions": F.coalesce("unseen_interactions", "interactions").cast("double"),
             "oldest": _age(), "random": F.lit(1.0)}
    return named.get(priority, F.col("value") / F.greatest(F.col("cost"), F.lit(1)))


def _held_back(job: Job, entity: str) -> Column:
    """Why a changed row is not written, whatever the budget, but for the sample; null if it may be."""
    settings = job.config.refresh
    if not settings.is_limited:
        return F.lit(None).cast("string")
    wait = F.pow(F.lit(2), F.least(F.col("old.failures"), F.lit(MAX_BACKOFF)))
    failed = (F.col("old.failures") > 0) & (_days_since(job, "old.failed_dt") < wait)
    previous = published.previous_folder(job, entity)
    if previous and published.writer_changes(job, previous, entity):
        failed = F.lit(False)  # what failed may succeed with another model or prompt set
    free = _overdue(job) | (_rewritten(job, entity) & ~F.col("same_text"))
    keeps = F.col("has_text") & ~free
    few = F.col("unseen_interactions") < (settings.min_new_interactions if entity == "user" else 0)
    return (F.when(F.coalesce(failed, F.lit(False)), FAILED)
            .when(keeps & F.coalesce(few, F.lit(False)), FEW_NEW)
            .when(keeps & (_age() < settings.min_days), RECENT))
