"""How a stage reads what an earlier one left, and says which command to run where it is not there."""

from pyspark.sql import DataFrame

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


def table(job: Job, stage: str, entity: str) -> DataFrame:
    """A stage's table of one entity type."""
    return read_parquet(job.spark, folder(job, stage, entity))


def folder(job: Job, stage: str, entity: str) -> AnyPath:
    return job.space.stage(stage) / f"entity={entity}"


def report(record: dict) -> dict:
    """What a stage returns: its done-record without the book-keeping."""
    return {key: value for key, value in record.items() if key not in ("fingerprint", FILES)}


