"""How a stage reads what an earlier one left, and says which command to run where it is not there."""

from pyspark.sql import DataFrame

from dare_job import knowledge
from dare_job.errors import DataError
from dare_job.files import AnyPath
from dare_job.job import Job
from dare_job.spark.reading import read_parquet
from dare_job.workspace import FILES, done_record, is_whole

_COMMANDS = {"input": "plan"}  # where a folder is written by a command of another name


def require(job: Job, stage: str) -> dict:
    """The done-record of a stage, with its fingerprint. Raises DataError where it has not run to its end."""
    folder = job.space.stage(stage)
    try:
        record = done_record(folder)
    except (OSError, ValueError):
        record = None
    if record is None or not is_whole(folder, record):
        what = "has no finished" if record is None else "lacks files of the stage"
        raise DataError(f"{folder} {what} {stage}: run `dare-job {_COMMANDS.get(stage, stage)}` "
                        f"with --date {job.space.dt} first")
    return record


def require_plan(job: Job) -> dict:
    """The done-record of plan. Raises DataError where the model, or the text before, is another by now.

    Texts would have the other model's keys. Rows that the plan left out as fresh would be missing from a
    snapshot that starts from another date's.
    """
    record, what = require(job, "plan"), None
    if record.get("model") not in (None, job.model_hash):  # older plans do not say
        what = f"model {job.config.model.name}"
    for entity, before in record.get("before", {}).items():
        if (now := knowledge.identity(job, entity)) != before:
            what = f"the text of {entity}s from before ({_shown(now)} now, {_shown(before)} then)"
    if what:
        raise DataError(f"{what} is another than {job.space.stage('plan')} was made for: run `dare-job run`, "
                        f"or `dare-job plan` and the stages behind it, with --date {job.space.dt}")
    return record


def _shown(identity: list) -> str:
    place, run_id = identity
    return f"{place} of run {run_id}" if run_id else place or "none"


def table(job: Job, stage: str, entity: str) -> DataFrame:
    """A stage's table of one entity type."""
    return read_parquet(job.spark, folder(job, stage, entity))


def folder(job: Job, stage: str, entity: str) -> AnyPath:
    return job.space.stage(stage) / f"entity={entity}"


def report(record: dict) -> dict:
    """What a stage returns: its done-record without the book-keeping."""
    return {key: value for key, value in record.items() if key not in ("fingerprint", FILES)}


