"""Tonight's rows as the stage generate left them: what the gate reads and publish shows."""

from pathlib import Path

import pyarrow as pa

from dare_job import knowledge
from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.stages import upstream
from dare_job.tables import ENTITIES


def folder(job: Job, entity: str) -> Path:
    return upstream.folder(job, "generate", entity)


def require(job: Job) -> dict:
    """The done-record of generate. Raises DataError where it has not ended, or files are gone or damaged."""
    generated = upstream.require(job, "generate")
    try:
        rows = sum(knowledge.dataset(folder(job, entity)).count_rows() for entity in ENTITIES)
    except (pa.ArrowException, OSError):
        rows = "not all readable"
    if rows != generated["rows"]:
        raise DataError(f"{job.space.stage('generate')}: {rows} of {generated['rows']} finished rows: run "
                        f"`dare-job generate` with --date {job.space.dt}, which writes what is missing")
    return generated


def identity(job: Job, entity: str) -> list:
    """What a snapshot is made from: tonight's files, and the text before with the run that published it."""
    rows = sorted((path.name, path.stat().st_mtime_ns) for path in folder(job, entity).glob("*.parquet"))
    old = knowledge.old_folder(job, entity)
    place = old.relative_to(job.space.out) if old and old.is_relative_to(job.space.out) else old
    return [rows, str(place), knowledge.manifest(old).get("run_id") if old else None]
