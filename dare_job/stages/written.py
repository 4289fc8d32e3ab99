"""Tonight's rows as the stage generate left them: what the gate reads and publish shows."""

import pyarrow as pa

from dare_job import files, knowledge
from dare_job.errors import DataError
from dare_job.files import AnyPath
from dare_job.job import Job
from dare_job.spark.reading import rows_of
from dare_job.stages import upstream
from dare_job.tables import ENTITIES


def folder(job: Job, entity: str) -> AnyPath:
    return upstream.folder(job, "generate", entity)


def parts(job: Job, entity: str) -> list[AnyPath]:
    """The files of an entity type's rows."""
    return sorted(folder(job, entity).glob("*.parquet"))


def count(job: Job, entity: str) -> int:
    """Rows of an entity type, by the footers of its files, of which few are held: there may be many."""
    return sum(files.each(rows_of, parts(job, entity)))


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
    found = parts(job, entity)
    rows = [[path.name, version] for path, (_, version) in zip(found, files.identities(found), strict=True)]
    return [rows, *knowledge.identity(job, entity)]
