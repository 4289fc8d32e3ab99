"""The shard plan: which row of this run is generated in which shard and chunk.

The plan is persisted before the model starts. A resumed run reads it and generates the missing chunks. If
plan, routes or ``--limit`` changed, a new shard plan is made. It keeps every finished row whose text would
be the same; the limit only affects which other rows are generated.

    generate/_cut.json                       token, fingerprint, shards, rows, waves; written last
    generate/cut/*.parquet                   the rows, with wave, shard, chunk and position
    generate/entity=E/part-<shard>-<chunk>.parquet   finished chunks
    generate/entity=E/kept-*.parquet         finished rows from an earlier shard plan of the same date
    generate/strict/entity=E/part-*.parquet  strict texts of the rows of the sample (``strict_sample``)
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job import errors
from dare_job.errors import DareJobError
from dare_job.generate import row_assignment, strict_sample, waves
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.schemas import ENTITIES
from dare_job.spark.tables import read_parquet, row_count, write_parquet
from dare_job.storage import atomic_folder, paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import chunk_files, parts
from dare_job.tables.published import has_relaxed_tokens, read_texts
from dare_job.workspace import SHARD_PLAN, digest, write_json

FAILED = "_failed.json"  # written by a worker that stopped the run
RETRY = "_retry.json"  # written by the gate if too many rows failed: the next run retries them
ROW_COLUMNS = ("entity_id", "prompt", "prompt_sha256", "text_key", "error", "pool", "pool_kind", "own_ids",
               "strict", "rank")
ASSIGNMENT_COLUMNS = ("wave", "shard", "chunk", "position")  # added by the shard plan
_KEPT_ROWS = 100_000  # rows in one file of kept rows


@dataclass(frozen=True)
class ShardPlan:
    """A persisted shard plan. The fields other than ``folder`` are the keys of ``_cut.json``.

    Attributes
    ----------
    rows
        All rows of the finished stage, including kept rows.
    kept
        Rows kept from an earlier shard plan.
    token
        Unique id of the plan. Workers of an earlier plan have a different one.
    waves
        [rows, shards] of each wave; shards are numbered consecutively over the waves.
    drafting
        Entity types whose waves draft from the texts of earlier waves.
    wave_settings
        Digest of the settings that assign rows to waves.
    sample_wave
        Wave of the rows that are also written strictly; 0: there is none.
    """

    folder: AnyPath
    fingerprint: str
    shards: int
    rows: int
    kept: int
    limit: int | None = None
    token: str = ""
    waves: Sequence[Sequence[int]] = ()
    drafting: Sequence[str] = ()
    wave_settings: str = ""
    sample_wave: int = 0

    def shards_of(self, wave: int) -> range:
        """Shard numbers of a wave. Waves are counted from 1."""
        first = sum(shards for _, shards in self.waves[:wave - 1])
        return range(first, first + self.waves[wave - 1][1])

    @property
    def entities(self) -> list[AnyPath]:
        """Folders of the chunks by entity type, in the order of ``ENTITIES``."""
        return [self.folder / f"entity={entity}" for entity in ENTITIES]


@progress.doing("checking finished rows")
def load_or_create(job: Job, fingerprint: str, rows_to_write) -> ShardPlan:
    """The shard plan with this fingerprint: the existing one, or a new one for the rows of this run.

    ``rows_to_write(limit)`` returns a DataFrame with ``entity`` and ROW_COLUMNS, one row per text; None: this
    run has no rows.
    """
    folder = job.space.stage("generate")
    wave_settings = digest([job.config.waves.model_dump(), job.config.refresh.is_timed,
                            *strict_sample.settings(job.config)])
    for entity in ENTITIES:
        for chunks in (folder, folder / strict_sample.FOLDER):
            chunk_files.discard_unreadable(chunks / f"entity={entity}")
    plan = read_plan(folder)
    if plan and plan.fingerprint == fingerprint and _covers(plan, job.limit, wave_settings):
        return plan
    staging = atomic_folder.stage_folder(folder)
    with atomic_folder.remove_on_error(staging):
        if rows_to_write is None:
            kept, record = 0, _write_empty(staging)
        else:
            kept = _copy_finished(job, rows_to_write(None), folder, staging)
            rows = rows_to_write(job.limit).cache()
            record = _write(job, rows, staging)
            rows.unpersist()
        write_json(staging / SHARD_PLAN, {
            "token": secrets.token_hex(8), "fingerprint": fingerprint, "limit": job.limit, "kept": kept,
            "wave_settings": wave_settings, **record, "rows": record["rows"] + kept})
        atomic_folder.replace(staging, folder)
    return read_plan(job.space.stage("generate"))


def _covers(plan: ShardPlan, limit: int | None, wave_settings: str) -> bool:
    """True if a plan has the requested limit and waves, or covers more rows and all of them are finished."""
    if (plan.folder / RETRY).exists() or not _is_complete(plan):
        return False
    if plan.limit == limit and plan.wave_settings == wave_settings:
        return True
    covers = plan.limit is None or (limit is not None and limit <= plan.limit)
    return covers and chunk_files.Tally(plan.entities).update().rows == plan.rows


def _is_complete(plan: ShardPlan) -> bool:
    """False if files of the plan itself or of the kept rows are missing or damaged."""
    kept = (path for entity in plan.entities for path in entity.glob("kept-*.parquet"))
    try:
        waiting = sum(paths.map_paths(row_count, (plan.folder / "cut").glob("*.parquet")))
    except (pa.ArrowException, OSError):
        return False
    folders = all(entity.is_dir() or not paths.is_local(entity) for entity in plan.entities)
    return (waiting == plan.rows - plan.kept and folders
            and sum(chunk_files.read_totals(path).rows for path in kept) == plan.kept)


def read_plan(folder: AnyPath) -> ShardPlan | None:
    """The shard plan in a folder, or None."""
    try:
        return ShardPlan(folder=folder, **json.loads((folder / SHARD_PLAN).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def record_failure(folder: AnyPath, error: DareJobError) -> None:
    """Record an error that affects all rows. The other workers stop at their next chunk."""
    write_json(folder / FAILED, {"error": type(error).__name__, "message": str(error)})


def is_active(folder: AnyPath, token: str) -> bool:
    """False if workers must stop writing: a worker recorded a failure, or a later run made a new plan."""
    plan = read_plan(folder)
    return plan is not None and plan.token == token and not (folder / FAILED).exists()


def raise_failure(folder: AnyPath) -> None:
    """Check whether a worker stopped the run.

    Raises
    ------
    DareJobError
        A worker stopped it; the error has the class and message that the worker recorded.
    """
    try:
        failure = json.loads((folder / FAILED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    raise getattr(errors, failure["error"])(failure["message"])


def remaining_rows(job: Job, plan: ShardPlan, wave: int | None = None) -> DataFrame:
    """Rows (of a wave) without a committed chunk: one partition per shard, by position."""
    return in_shards(uncommitted(job, plan, wave, plan.entities), plan, wave)


def uncommitted(job: Job, plan: ShardPlan, wave: int | None, folders: Sequence[AnyPath]) -> DataFrame:
    """Rows (of a wave) without a committed chunk in ``folders``, one for each of ``ENTITIES``."""
    rows = read_parquet(job.spark, plan.folder / "cut")
    if wave is not None:
        rows = rows.where(F.col("wave") == wave)
    done = sorted({(entity, *chunk) for entity, folder in zip(ENTITIES, folders, strict=True)
                   for chunk in chunk_files.committed(folder)})
    if done:
        ready = job.spark.createDataFrame(done, "entity string, shard int, chunk int")
        rows = rows.join(F.broadcast(ready), ["entity", "shard", "chunk"], "left_anti")
    return rows


def in_shards(rows: DataFrame, plan: ShardPlan, wave: int | None = None) -> DataFrame:
    """Rows (of a wave) in one partition per shard, by position."""
    numbers = range(plan.shards) if wave is None else plan.shards_of(wave)
    partition = F.col("shard") - F.lit(numbers.start)
    return rows.repartitionById(max(1, len(numbers)), partition).sortWithinPartitions("position")


def _write_empty(staging: AnyPath) -> dict:
    """Write the folders of a run without rows."""
    for entity in ENTITIES:
        (staging / f"entity={entity}").mkdir()
    return {"shards": 0, "rows": 0, "waves": [], "drafting": [], "sample_wave": 0}


def _write(job: Job, rows, staging: AnyPath) -> dict:
    """Assign the rows that are not kept to shards and write them to ``staging/cut``."""
    texts = {}
    for entity in ENTITIES:
        kept = staging / f"entity={entity}"
        if any(kept.glob("*.parquet")):
            texts[entity] = chunk_files.Tally([kept]).update().rows
            ids = read_parquet(job.spark, kept, columns=["entity_id"])
            ids = ids.select(F.lit(entity).alias("entity"), "entity_id")
            rows = rows.join(ids, ["entity", "entity_id"], "left_anti")
    with progress.doing("choosing the rows of each wave"):
        rows, drafting, sample = waves.add_waves(job, rows, texts)
    with progress.doing("assigning rows to shards"):
        record, placed = row_assignment.assign_rows(job, rows.select("wave", "entity", *ROW_COLUMNS))
    with progress.doing("writing the shard plan"):
        write_parquet(placed.select("entity", *ROW_COLUMNS, *ASSIGNMENT_COLUMNS), (staging / "cut").resolve())
    return {"shards": sum(shards for _, shards in record), "rows": sum(rows for rows, _ in record),
            "waves": record, "drafting": drafting, "sample_wave": sample}


@progress.doing("copying finished rows")
def _copy_finished(job: Job, wanted, old: AnyPath, staging: AnyPath) -> int:
    """Copy finished rows whose text key and rule are still current. Rows with errors are generated again."""
    kept = 0
    for entity in ENTITIES:
        folder = staging / f"entity={entity}"
        folder.mkdir()
        before = chunk_files.Tally([old / folder.name]).update()
        if not before.rows:
            continue
        finished = read_texts(job, old / folder.name).where(F.col("error").isNull())
        keys = wanted.where(F.col("entity") == entity).select(
            F.col("entity_id").alias("id"), F.col("text_key").alias("key"), "strict")
        same = (F.col("entity_id") == F.col("id")) & (F.col("text_key") == F.col("key"))
        table = finished.join(keys, same & (~F.col("strict") | ~has_relaxed_tokens()), "left_semi")
        files = parts.write_parts(table, folder, "kept", 1 + before.rows // _KEPT_ROWS,
                                  before.busy_s / max(1, before.tokens))
        kept += sum(part.rows for part in files)
    return kept
