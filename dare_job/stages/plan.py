"""Stage plan: selects the entities that need new text and renders their prompts.

Reads the input and the previous snapshot.
"""

import logging
from dataclasses import fields
from functools import partial
from itertools import product

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from dare_job import prompts
from dare_job.data import render
from dare_job.data.history import end_of_date, end_of_day, user_histories
from dare_job.data.input.prepare import InputCounts, UsableCounts, prepare_input
from dare_job.data.text_key import text_salt
from dare_job.embed import attributes
from dare_job.embed.vectors import write_vectors
from dare_job.generate import preflight, strict_sample
from dare_job.job import Job
from dare_job.models.files import EMBEDDED
from dare_job.observe import progress
from dare_job.publish.gate import input_size
from dare_job.refresh import chosen, worth
from dare_job.schemas import ENTITIES, GLOBAL, KNOWLEDGE, MODES_WITH_GROUP_POOLS, PLAN, TRAFFIC
from dare_job.spark.tables import read_parquet, write_parquet
from dare_job.stages import embed
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.tables.published import has_relaxed_tokens, previous_folder, read_texts
from dare_job.tables.stage_inputs import stage_report
from dare_job.workspace import MANIFEST, committing, digest, done_record, is_done
from pools import router

_LOG = logging.getLogger("dare_job")


def run(job: Job) -> dict:
    """Write PLAN for users and items; returns counts by entity type.

    Every entity of the input or of the previous snapshot has one row.

    Raises
    ------
    DataError
        The input is invalid or empty, or ``input.knowledge`` cannot be used.
    ThresholdError
        The input is far smaller than that of the previous date.
    ModelError
        The model is missing, incomplete or not supported.
    ConfigError
        As ``certificate.require_encoder``.
    """
    with progress.doing("hashing the model"):  # first, so that an incomplete model fails early
        salts = {entity: text_salt(job.config, job.model_hash, job.draft_hash, entity) for entity in ENTITIES}
    with progress.doing("checking the model"):
        preflight.check_model(job)
    _check_loss(job)
    _warn_of_wording(job)
    source = prepare_input(job, partial(input_size.check, job))
    previous = {entity: previous_folder(job, entity) for entity in ENTITIES}
    vectors = _vectors(job, source) if previous["user"] and worth.uses_vectors(job) else None
    fingerprint = digest([
        done_record(source)["fingerprint"], [*salts.values()], job.space.dt, end_of_date(job),
        job.config.history.model_dump(),
        [job.config.prompt_set(entity).version_hash for entity in ENTITIES],
        PLAN.names, _refresh_interval(job), job.config.refresh.choosing | _learned(job), vectors,
        _routing(job),
        [_identity(previous[entity]) for entity in ENTITIES]])
    target = job.space.stage("plan")
    if not is_done(target, fingerprint):
        record: dict = {"input": _input_counts(done_record(source)), "model": job.model_hash,
                        "before": {entity: published.text_identity(job, entity) for entity in ENTITIES}}
        with committing(target, fingerprint, record) as staging:
            for entity in ENTITIES:
                comparing = " and comparing them with the previous ones" if previous[entity] else ""
                with progress.doing(f"rendering {entity} prompts{comparing}"):
                    table = _users(job, source, vectors) if entity == "user" else _items(job, source)
                    if getattr(job.config.prompts, entity) is None:
                        table = table.where(F.lit(False))
                    folder = staging / f"entity={entity}"
                    rows = _planned(job, entity, table, previous[entity], salts[entity])
                    rows = worth.add_worth(job, entity, rows, end_of_date(job) - end_of_day(job.space.day),
                                           _pool_kind(job, entity))
                    write_parquet(rows.select(*PLAN.names), folder)
                    record[entity] = _entity_counts(folder)
            with progress.doing("choosing the rows to write"):
                record["refresh"] = chosen.choose_rows(job, staging)
    record = done_record(target)
    _warn_of_missing_prompts(job, record)
    return stage_report(record)


def _check_loss(job: Job) -> None:
    """Check that the loss of lossy verification can be measured, before anything is generated."""
    if strict_sample.settings(job.config):
        from dare_job.publish.loss import certificate  # imports scipy, which few runs need

        certificate.require_encoder(job)


def _warn_of_missing_prompts(job: Job, record: dict) -> None:
    """Warn if half of the users or items have no prompt, as of a wrong input."""
    records = {entity: record[entity] for entity in ENTITIES
               if getattr(job.config.prompts, entity) is not None}
    users, items = records.get("user"), records.get("item")
    if users and 2 * users["errors"] >= users["rows"]:
        min_rating = job.config.history.min_rating
        rating = f", rated at least history.min_rating = {min_rating:g}" if min_rating is not None else ""
        _LOG.warning("%d of %d users get no text: they have no interaction before the end of %s (--date) "
                     "with an item that has a title%s; `dare-job data inspect` compares the tables",
                     users["errors"], users["rows"], job.space.dt, rating)
    if items and items["rows"] and 2 * items["errors"] >= items["rows"]:
        _LOG.warning("%d of %d items get no text: the table items lacks them, or their title is empty; "
                     "`dare-job data inspect` compares the tables", items["errors"], items["rows"])


def _learned(job: Job) -> dict:
    """Learned coefficients of the value, on which the choice of rows depends; empty without any."""
    coefficients = worth.learned_coefficients(job)
    return {} if coefficients is None else {"learned": vars(coefficients)}


def _routing(job: Job) -> list:
    """Settings on which ``_pool_kind`` and so the cost of a row depends; empty if nothing is chosen by it."""
    return [job.config.decode.mode, job.config.router.model_dump()] if job.config.refresh.is_limited else []


def _pool_kind(job: Job, entity: str) -> Column:
    """The kind of pool that the stage route will most likely choose for a row, by its rule.

    Groups are made after the plan. Here an entity with interactions, where its type has vectors, counts as
    one with a collaborative group, and one with an attribute as one with an attribute group.
    """
    if job.config.decode.mode not in MODES_WITH_GROUP_POOLS:
        return F.lit(GLOBAL)
    settings, provided = job.config.router, job.config.embed.vectors
    least = settings.min_interactions
    has_history, has_group = F.col("interactions") >= least, F.col("interactions") > 0
    if provided and entity not in provided:
        has_group = F.lit(False)
    impressions = F.map_contains_key("attributes", TRAFFIC).cast("int")  # no group is made of them
    has_attribute = F.coalesce(F.size("attributes") > impressions, F.lit(False))
    cases = enumerate((has_attribute, has_group, has_history))
    place = sum((case.cast("int") * 2**bit for bit, case in cases), F.lit(0))
    kinds = [router.route(entity, least - (not history), "group" if group else None,
                          "group" if attribute else None, least, getattr(settings, entity)).pool_kind
             for history, group, attribute in product((False, True), repeat=3)]
    return F.get(F.array(*map(F.lit, kinds)), place)


def _warn_of_wording(job: Job) -> None:
    """Warn if the prompt set does not fit the model: the embedded model needs the set ``sample``."""
    model = job.config.model.name
    sets = {f"prompts.{entity}": getattr(job.config.prompts, entity) for entity in ENTITIES}
    unfit = [f"{key} = {value}" for key, value in sets.items()
             if value is not None and (value == prompts.SAMPLE) != (model == EMBEDDED)]
    if unfit and model == EMBEDDED:
        _LOG.warning("%s: the embedded model knows only the prompt set %s and will write nonsense; use that "
                     "set, or another model", ", ".join(unfit), prompts.SAMPLE)
    elif unfit:
        others = ", ".join(name for name in prompts.set_names() if name != prompts.SAMPLE)
        _LOG.warning("%s: this prompt set is made for the embedded model, not for %s; choose one of %s, or "
                     "your own file (docs/how-to/prompts.md)", ", ".join(unfit), model, others)


@progress.doing("listing the previous snapshot")
def _identity(path: AnyPath | None) -> list | None:
    if path is None:
        return None
    files = sorted(file for file in path.rglob("*") if file.suffix == ".parquet" or file.name == MANIFEST)
    return paths.file_versions(files)


def _read(job: Job, source: AnyPath, name: str) -> DataFrame:
    return read_parquet(job.spark, source / f"{name}.parquet")


def _interactions(job: Job, source: AnyPath) -> DataFrame:
    return _read(job, source, "interactions").where(F.col("timestamp") < end_of_date(job))


def _vectors(job: Job, source: AnyPath) -> tuple[str, str]:
    """Folder and version of the item vectors: by attributes, or else those of ``embed``, which runs here."""
    target, fingerprint = job.space.stage("item_vectors"), digest([done_record(source)["fingerprint"]])
    if not is_done(target, fingerprint):
        record: dict = {}
        with committing(target, fingerprint, record) as staging, \
                progress.doing("reading the attributes of items"):
            ids, vectors = attributes.read_items(source / "items.parquet")
            write_vectors(staging / "entity=item" / "part-0.parquet", ids, vectors)
            record["items"] = len(ids)
    name = "item_vectors" if done_record(job.space.stage("item_vectors"))["items"] else "embed"
    if name == "embed":
        embed.run(job)
    folder = job.space.stage(name)
    return str((folder / "entity=item").absolute()), done_record(folder)["fingerprint"]


def _users(job: Job, source: AnyPath, vectors: tuple[str, str] | None) -> DataFrame:
    """The columns ``render.RENDERED`` of every user of the input."""
    titled = _read(job, source, "items").where(F.trim("title") != "")
    settings = job.config.history
    longer = settings.model_copy(update={"max_items": 2 * settings.max_items}) if vectors else settings
    past = user_histories(_interactions(job, source), titled, longer)
    users = _read(job, source, "users").join(past, "user_id", "full")
    version = done_record(source)["fingerprint"]
    items = str((source / "items.parquet").absolute())  # executors have another working directory
    prompts_of_users = render.render_users(job.config.prompt_set("user"), items, version, vectors,
                                           settings.max_items)
    return _rendered(users, "user_id", "history", prompts_of_users)


def _items(job: Job, source: AnyPath) -> DataFrame:
    """The same columns for every item."""
    counts = _interactions(job, source).groupBy("item_id").agg(F.count("*").cast("int").alias("interactions"))
    items = _read(job, source, "items").join(counts, "item_id", "full")
    items = items.withColumn("times", F.lit(None).cast("array<bigint>"))
    return _rendered(items, "item_id", "title", render.render_items(job.config.prompt_set("item")))


def _rendered(entities: DataFrame, key: str, source_column: str, render_batches) -> DataFrame:
    count = F.coalesce("interactions", F.lit(0)).alias("interactions")
    rows = entities.select(F.col(key).alias("entity_id"), count, "attributes", "times", source_column)
    return rows.mapInArrow(render_batches, render.RENDERED)


def _planned(job: Job, entity: str, table: DataFrame, previous: AnyPath | None, salt: str) -> DataFrame:
    """Add hashes and staleness, and what ``worth.add_worth`` needs of the previous row.

    Entities that only the previous snapshot has are kept and not stale. A row without a prompt is stale only
    if its error is new, as trying it again would give the same error. In a row's strict run, a text with
    relaxed tokens is stale too.
    """
    sha = F.sha2("prompt", 256)
    plan = table.withColumns({
        "prompt_sha256": sha, "text_key": F.sha2(F.concat(sha, F.lit(salt)), 256),
        "strict": _is_strict_run(job)})
    if previous is None:
        kinds = {field.name: field.dataType for field in from_arrow_schema(KNOWLEDGE)}
        nothing = F.struct(*[F.lit(None).cast(kinds[name]).alias(name) for name in worth.OF_TEXTS])
        return plan.withColumns({"stale": F.lit(True), "has_text": F.lit(False), "old": nothing,
                                 "same_text": F.lit(False), "same_writer": F.lit(True)})
    dated = previous == job.space.previous(entity)  # published rows with a text have its date
    compared = ["entity_id", "text_key", "prompt_sha256", "error", "relaxed_tokens", *worth.OF_TEXTS]
    texts = read_texts(job, previous, compared if dated else [*compared, "knowledge"])
    texts = texts.withColumn("has_text", F.col("generated_dt" if dated else "knowledge").isNotNull())
    if not dated:
        _warn_of_dates(texts, previous)
    texts = texts.withColumn("generated_dt", published.text_date())
    if previous.name.startswith("dt="):
        texts = texts.withColumn("generated_dt", F.coalesce("generated_dt", F.lit(previous.name[3:])))
    old = texts.select(
        "entity_id", F.col("text_key").alias("old_key"), F.col("prompt_sha256").alias("old_sha"),
        F.col("error").alias("old_error"), has_relaxed_tokens().alias("relaxed"),
        "has_text", F.struct(*worth.OF_TEXTS).alias("old"))
    known = F.col("interactions").isNotNull()
    fresh = F.col("old_key").eqNullSafe(F.col("text_key")) & F.col("old_key").isNotNull()
    kept = fresh & F.col("old_error").isNull() & ~(F.col("strict") & F.col("relaxed"))
    key_now = F.sha2(F.concat("old_sha", F.lit(salt)), 256)  # of the old prompt with today's writer
    same_error = F.col("error").isNotNull() & F.col("error").eqNullSafe(F.col("old_error"))
    return plan.join(old, "entity_id", "full").withColumns({
        "stale": known & ~(kept | same_error),
        "same_text": F.coalesce(fresh, F.lit(False)),
        "same_writer": F.coalesce(F.col("old_key") == key_now, F.lit(True)),
        "strict": F.coalesce("strict", F.lit(False)),
        "has_text": F.coalesce("has_text", F.lit(False)),
        "interactions": F.coalesce("interactions", F.lit(0)),
        "prompt_sha256": F.when(known, F.col("prompt_sha256")).otherwise(F.col("old_sha")),
        "text_key": F.when(known, F.col("text_key")).otherwise(F.col("old_key")),
    })


def _warn_of_dates(texts: DataFrame, folder: AnyPath) -> None:
    """Warn if the date of a text that came with the input cannot be read."""
    unreadable = F.col("generated_dt").isNotNull() & published.text_date().isNull()
    if found := texts.where(unreadable).select("generated_dt").first():
        _LOG.warning("%s: generated_dt = %r is not a date; write dates as YYYY-MM-DD. Such a text counts as "
                     "one without a date", folder, found[0])


def _refresh_interval(job: Job) -> int:
    """``verify.refresh_nights`` if verification is relaxed; 0: rows are never refreshed."""
    verify = job.config.verify
    return verify.refresh_nights if job.config.decode.mode == "dare" and not verify.is_strict else 0


def _is_strict_run(job: Job) -> Column:
    """Whether a row is verified strictly in this run. The id decides, to spread the rows over runs."""
    days = _refresh_interval(job)
    if not days:
        return F.lit(False)
    return F.pmod(F.xxhash64("entity_id") + F.lit(job.space.day.toordinal()), F.lit(days)) == 0


def _input_counts(record: dict) -> dict:
    names = [field.name for counts in (InputCounts, UsableCounts) for field in fields(counts)]
    return {name: record[name] for name in names}


def _entity_counts(folder: AnyPath) -> dict[str, int]:
    plan = paths.parquet_dataset(folder)
    stale, without_prompt = pc.field("stale"), pc.field("error").is_valid()
    return {"rows": plan.count_rows(), "stale": plan.count_rows(filter=stale),
            "errors": plan.count_rows(filter=without_prompt),
            "errors_before": plan.count_rows(filter=without_prompt & ~stale)}
