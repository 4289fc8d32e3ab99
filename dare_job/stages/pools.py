"""Stage pools: indexes the previous texts of each pool's members, and of all groups in pool ``global``."""

import logging
from collections import Counter

from pyspark.sql import Window
from pyspark.sql import functions as F

from dare_job.errors import InfrastructureError
from dare_job.generate import previous_text
from dare_job.job import Job
from dare_job.models.files import tokenizer_hash
from dare_job.observe import progress
from dare_job.schemas import ENTITIES, GLOBAL, MODES_WITH_GROUP_POOLS, MODES_WITHOUT_POOLS
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published, stage_inputs
from dare_job.workspace import committing, digest, done_record, is_done

_LOG = logging.getLogger("dare_job")


def run(job: Job) -> dict:
    """Build the pools of both entity types; returns the number of pools, texts and tokens of each.

    Without previous text there are no pools, and drafts come only from the prompt and the generated text.
    """
    old = {entity: published.previous_folder(job, entity) for entity in ENTITIES}
    tokenizer = tokenizer_hash(job.model_path)
    folder = job.space.stage("pools")
    with progress.doing("listing the previous texts"):
        texts = {entity: (published.text_identity(job, entity),
                          paths.file_versions(published.parquet_files(path)) if path else [])
                 for entity, path in old.items()}
    fingerprint = digest([
        "pools", texts, tokenizer, job.config.pools.model_dump(), job.config.seed, job.config.decode.mode,
        stage_inputs.require_stage(job, "route")["fingerprint"]])
    if not is_done(folder, fingerprint):
        record: dict = {}
        with committing(folder, fingerprint, record) as staging:
            for entity, path in old.items():
                target = staging / f"entity={entity}"
                target.mkdir()
                record[entity] = {"from": str(path) if path else None, "pools": 0, "texts": 0, "tokens": 0}
                if path and job.config.decode.mode not in MODES_WITHOUT_POOLS:
                    _warn_of_another_writer(job, path, entity)
                    record[entity] |= _build(job, entity, path, tokenizer, target)
    return stage_inputs.stage_report(done_record(folder))


def _warn_of_another_writer(job: Job, old: AnyPath, entity: str) -> None:
    """Warn that drafts from text of another model, tokenizer or prompt are accepted less often."""
    if not published.read_manifest(old):
        _LOG.info("%s has no manifest: the model and prompt that wrote this text are unknown. Drafts from "
                  "another model are accepted less often", old)
        return
    for what, before, after in published.writer_changes(job, old, entity):
        _LOG.warning("the previous %s text in %s was generated with another %s (%s, this run: %s): drafts "
                     "will be accepted less often", entity, old, what, before, after)


def _build(job: Job, entity: str, old: AnyPath, tokenizer: str, staging: AnyPath) -> dict:
    settings = job.config.pools
    with progress.doing(f"checking the token ids of previous {entity} texts"):
        previous_text.warn_invalid_ids(job, old)
        tokens = previous_text.previous_token_ids(job, old)
    rank = F.xxhash64(F.lit(job.config.seed), "entity_id")
    # a single task sorts for the limit, so it gets only ids, not texts
    ids = published.read_texts(job, old).where(F.length("knowledge") > 0).select("entity_id").distinct()
    chosen = ids.orderBy(rank, "entity_id").limit(settings.max_global_texts)
    parts = tokens.join(chosen, "entity_id", "left_semi").select(
        F.lit(GLOBAL).alias("pool"), F.lit(GLOBAL).alias("kind"), "entity_id", "token_ids")
    if job.config.decode.mode in MODES_WITH_GROUP_POOLS:
        routes = stage_inputs.stage_table(job, "route", entity)
        parts = parts.unionByName(_members(tokens, routes, settings, rank))
    target = str(staging.resolve())
    writer = published.read_manifest(old)
    meta = {"tokenizer": tokenizer, "entity": entity, "dt": job.space.dt, "source": str(old),
            "model": writer.get("model", {}).get("hash"), "prompt": writer.get("prompts", {}).get(entity)}

    def build(table):
        at = paths.path(target)
        if paths.is_local(at) and not at.is_dir():  # do not create the folder again
            raise InfrastructureError(f"{target} does not exist: the stage has already ended")
        return previous_text.build_pool(table, target, meta)

    partitions = 4 * job.spark.sparkContext.defaultParallelism
    pools = parts.repartition(partitions, "pool").groupBy("pool")
    with progress.doing(f"indexing previous {entity} texts"):
        stats = pools.applyInArrow(build, previous_text.POOL_STATS).collect()
    return {"pools": len(stats), "texts": sum(row.texts for row in stats if row.pool == GLOBAL),
            "tokens": sum(row.tokens for row in stats if row.pool == GLOBAL),
            "bytes": sum(row.bytes for row in stats), "kinds": dict(Counter(row.kind for row in stats))}


def _members(tokens, routes, settings, rank):
    """Texts of the group pools: a seeded sample of at most ``max_texts`` per pool."""
    grouped = tokens.join(routes.where(F.col("pool") != GLOBAL), "entity_id")
    order = F.row_number().over(Window.partitionBy("pool").orderBy(rank, "entity_id"))
    return grouped.withColumn("order", order).where(F.col("order") <= settings.max_texts).select(
        "pool", F.col("pool_kind").alias("kind"), "entity_id", "token_ids")

