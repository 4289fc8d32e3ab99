"""How a stage reads what an earlier one left, and says which command to run where it is not there."""

from pathlib import Path

from pyspark.sql import DataFrame

from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.workspace import done_record

_COMMANDS = {"input": "plan"}  # where a folder is written by a command of another name


def require(job: Job, stage: str) -> dict:
    """The done-record of a stage, with its fingerprint. Raises DataError where it has not run."""
    try:
        return done_record(job.space.stage(stage))
    except (OSError, ValueError):
        command = _COMMANDS.get(stage, stage)
        raise DataError(f"{job.space.stage(stage)} has no finished {stage}: run `dare-job {command}` "
                        f"with --date {job.space.dt} first") from None


def table(job: Job, stage: str, entity: str) -> DataFrame:
    """A stage's table of one entity type."""
    return job.spark.read.parquet(str(folder(job, stage, entity)))


def folder(job: Job, stage: str, entity: str) -> Path:
    return job.space.stage(stage) / f"entity={entity}"


def report(record: dict) -> dict:
    """What a stage returns: its done-record without the book-keeping."""
    return {key: value for key, value in record.items() if key != "fingerprint"}


