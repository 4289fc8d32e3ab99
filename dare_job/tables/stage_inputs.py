"""Reads the outputs of earlier stages. If one is missing, the error names the command to run.

Also reads the rows of the stage generate, which the gate checks and publish publishes.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame

from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.schemas import ENTITIES
from dare_job.spark.tables import read_parquet, row_count
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.workspace import FILES, done_record, is_complete


def rows_to_generate(plan: ds.Dataset, limit: int | None = None):
    """The first ``limit`` stale rows with a prompt, sorted by entity_id, as an Arrow table (PLAN).

    Rows with ``error`` are not included: they need no model and are always written.
    """
    rows = plan.to_table(filter=pc.field("stale") & pc.field("prompt").is_valid()).sort_by("entity_id")
    return rows if limit is None else rows.slice(0, limit)

_COMMANDS = {"input": "plan"}  # where a folder is written by a command of another name


def require_stage(job: Job, stage: str) -> dict:
    """The done-record of a stage, with its fingerprint. Raises DataError where it has not run to its end."""
    folder = job.space.stage(stage)
    try:
        record = done_record(folder)
    except (OSError, ValueError):
        record = None
    if record is None or not is_complete(folder, record):
        what = "has no finished" if record is None else "lacks files of the stage"
        raise DataError(f"{folder} {what} {stage}: run `dare-job run --from "
                        f"{_COMMANDS.get(stage, stage)}` with --date {job.space.dt} first")
    return record


def require_plan(job: Job) -> dict:
    """The done-record of plan. Raises DataError where the model, or the text before, is another by now.

    Texts would have the other model's keys. Rows that the plan left out as fresh would be missing from a
    snapshot that starts from another date's.
    """
    record, what = require_stage(job, "plan"), None
    if record.get("model") not in (None, job.model_hash):  # older plans do not say
        what = f"model {job.config.model.name}"
    for entity, before in record.get("before", {}).items():
        if (now := published.text_identity(job, entity)) != before:
            what = f"the text of {entity}s from before ({_shown(now)} now, {_shown(before)} then)"
    if what:
        raise DataError(f"{what} is another than {job.space.stage('plan')} was made for: run "
                        f"`dare-job run --from plan` with --date {job.space.dt}")
    return record


def _shown(identity: list) -> str:
    place, run_id = identity
    return f"{place} of run {run_id}" if run_id else place or "none"


def stage_table(job: Job, stage: str, entity: str) -> DataFrame:
    """A stage's table of one entity type."""
    return read_parquet(job.spark, stage_folder(job, stage, entity))


def stage_folder(job: Job, stage: str, entity: str) -> AnyPath:
    return job.space.stage(stage) / f"entity={entity}"


def stage_report(record: dict) -> dict:
    """What a stage returns: its done-record without the book-keeping."""
    return {key: value for key, value in record.items() if key not in ("fingerprint", FILES)}


def generated_folder(job: Job, entity: str) -> AnyPath:
    return stage_folder(job, "generate", entity)


def generated_files(job: Job, entity: str) -> list[AnyPath]:
    """The files of an entity type's rows."""
    return sorted(generated_folder(job, entity).glob("*.parquet"))


def count_generated(job: Job, entity: str) -> int:
    """Rows of an entity type, by the footers of its files, of which few are held: there may be many."""
    return sum(paths.map_paths(row_count, generated_files(job, entity)))


def require_generated(job: Job) -> dict:
    """The done-record of generate. Raises DataError where it has not ended, or files are gone or damaged."""
    generated = require_stage(job, "generate")
    try:
        rows = sum(count_generated(job, entity) for entity in ENTITIES)
    except (pa.ArrowException, OSError):
        rows = "not all readable"
    if rows != generated["rows"]:
        raise DataError(f"{job.space.stage('generate')}: {rows} of {generated['rows']} finished rows: run "
                        f"`dare-job run --from generate` with --date {job.space.dt}")
    return generated


def snapshot_identity(job: Job, entity: str) -> list:
    """Identity of a snapshot's sources: generated files, and the previous text with its run id."""
    files = generated_files(job, entity)
    versions = paths.file_versions(files)
    rows = [[path.name, version] for path, (_, version) in zip(files, versions, strict=True)]
    return [rows, *published.text_identity(job, entity)]
