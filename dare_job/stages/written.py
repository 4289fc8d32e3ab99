"""Tonight's rows as the stage generate left them: what the gate reads and publish shows."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job import knowledge
from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.stages import upstream
from dare_job.tables import ENTITIES


def folder(job: Job, entity: str) -> Path:
    return upstream.folder(job, "generate", entity)


def files(job: Job, entity: str) -> list[Path]:
    return sorted(folder(job, entity).glob("*.parquet"))


def count(job: Job, entity: str) -> int:
    """Rows of an entity type, by the footers of its files, one held at a time: there may be many."""
    return sum(pq.read_metadata(path).num_rows for path in files(job, entity))


def require(job: Job) -> dict:
    """The done-record of generate. Raises DataError where it has not ended, or files are gone or damaged."""
    generated = upstream.require(job, "generate")
    try:
        rows = sum(count(job, entity) for entity in ENTITIES)
    except (pa.ArrowException, OSError):
        rows = "not all readable"
    if rows != generated["rows"]:
        raise DataError(f"{job.space.stage('generate')}: {rows} of {generated['rows']} finished rows: run "
                        f"`dare-job generate` with --date {job.space.dt}, which writes what is missing")
    return generated


def identity(job: Job, entity: str) -> list:
    """What a snapshot is made from: tonight's files, and the text before with the run that published it."""
    rows = sorted((path.name, path.stat().st_mtime_ns) for path in files(job, entity))
    old = knowledge.old_folder(job, entity)
    place = old.relative_to(job.space.out) if old and old.is_relative_to(job.space.out) else old
    return [rows, str(place), knowledge.manifest(old).get("run_id") if old else None]
