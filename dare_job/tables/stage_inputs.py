"""Reads the outputs of earlier stages. If one is missing, the error names the command to run.

Also reads the rows of the stage generate, which the gate checks and publish publishes.
"""

import pyarrow as pa
from pyspark.sql import DataFrame

from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.schemas import ENTITIES
from dare_job.spark.tables import read_parquet, row_count
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.workspace import FILES, done_record, is_complete


def has_rows_to_write(plan: dict) -> bool:
    """Whether a run has anything to write, by the done-record of the stage plan."""
    return any(plan["refresh"][entity]["chosen"] for entity in ENTITIES)


def require_stage(job: Job, stage: str) -> dict:
    """The done-record of a stage, with its fingerprint.

    Raises
    ------
    DataError
        The stage has not finished, or some of its files are missing.
    """
    folder = job.space.stage(stage)
    try:
        record = done_record(folder)
    except (OSError, ValueError):
        record = None
    if record is None or not is_complete(folder, record):
        what = "has no finished" if record is None else "lacks files of the stage"
        command = "plan" if stage == "input" else stage
        raise DataError(f"{folder} {what} {stage}: run `dare-job run --from {command} --date "
                        f"{job.space.dt}` with the same options first")
    return record


def require_plan(job: Job) -> dict:
    """The done-record of plan.

    Raises
    ------
    DataError
        The stage has not finished, or the model or the previous text has changed since. If the run went on,
        texts would have the other model's keys, and rows that the plan left out as fresh would be missing
        from a snapshot that starts from another date's.
    """
    record, changed = require_stage(job, "plan"), None
    if record["model"] != job.model_hash:
        changed = f"model {job.config.model.name}"
    for entity, before in record["before"].items():
        if (now := published.text_identity(job, entity)) != before:
            changed = f"previous text of {entity}s (now {_describe(now)}, before {_describe(before)})"
    if changed:
        raise DataError(f"{changed} has changed since {job.space.stage('plan')} was written: run "
                        f"`dare-job run --from plan --date {job.space.dt}` with the same options")
    return record


def _describe(identity: list) -> str:
    place, run_id = identity
    return f"{place} of run {run_id}" if run_id else place or "none"


def stage_table(job: Job, stage: str, entity: str) -> DataFrame:
    """A stage's table of one entity type."""
    return read_parquet(job.spark, stage_folder(job, stage, entity))


def stage_folder(job: Job, stage: str, entity: str) -> AnyPath:
    return job.space.stage(stage) / f"entity={entity}"


def stage_report(record: dict) -> dict:
    """What a stage returns: its done-record without fingerprint and number of files."""
    return {key: value for key, value in record.items() if key not in ("fingerprint", FILES)}


def generated_folder(job: Job, entity: str) -> AnyPath:
    return stage_folder(job, "generate", entity)


def generated_files(job: Job, entity: str) -> list[AnyPath]:
    """The files of an entity type's rows."""
    return sorted(generated_folder(job, entity).glob("*.parquet"))


def count_generated(job: Job, entity: str) -> int:
    """Number of generated rows of an entity type, from the footers of its files."""
    return sum(paths.map_paths(row_count, generated_files(job, entity)))


def require_generated(job: Job) -> dict:
    """The done-record of generate.

    Raises
    ------
    DataError
        The stage has not finished, or some of its files are missing or damaged.
    """
    generated = require_stage(job, "generate")
    try:
        rows = sum(count_generated(job, entity) for entity in ENTITIES)
    except (pa.ArrowException, OSError):
        rows = "not all readable"
    if rows != generated["rows"]:
        raise DataError(f"{job.space.stage('generate')}: {rows} of {generated['rows']} finished rows: run "
                        f"`dare-job run --from generate --date {job.space.dt}` with the same options")
    return generated


def snapshot_identity(job: Job, entity: str) -> list:
    """Identity of a snapshot's sources: generated files, and the previous text with its run id."""
    versions = paths.file_versions(generated_files(job, entity))
    rows = [[name, version] for name, _, version in versions]
    return [rows, *published.text_identity(job, entity)]
