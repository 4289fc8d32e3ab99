"""The published texts of a date, and what they have to be before they are encoded."""

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job import knowledge
from dare_job.errors import DataError
from dare_job.features.ids import repeated
from dare_job.job import Job
from dare_job.tables import ENTITIES


def require(job: Job) -> dict[str, dict]:
    """The manifests of the date's texts by entity type. Raises DataError where they are not this date's."""
    if not job.space.published(job.space.dt):
        raise DataError(f"{job.space.dt} is not published in {job.space.out}: run `dare-job publish` with "
                        f"--date {job.space.dt} first")
    found = {entity: knowledge.manifest(job.space.knowledge(entity)) for entity in ENTITIES}
    for entity, manifest in found.items():
        if manifest.get("date") != job.space.dt:
            raise DataError(f"{job.space.knowledge(entity)} holds texts of {manifest.get('date')}, as its "
                            f"manifest says: publish {job.space.dt} again, or put its own folder back")
    return found


def read(job: Job, entity: str) -> DataFrame:
    """(entity_id, knowledge, text_sha256) of every published row; the hash is null where there is no text."""
    rows = knowledge.read_table(job, job.space.knowledge(entity), ["entity_id", "knowledge"])
    is_text = F.col("knowledge").rlike(r"\S")
    return rows.withColumn("text_sha256", F.when(is_text, F.sha2("knowledge", 256)))


def entities(job: Job, entity: str, rows: DataFrame) -> tuple[pa.Array, int]:
    """Ids of the rows with a text (n,), and how many rows have none.

    Raises DataError where an id is there more than once.
    """
    found = rows.select("entity_id", F.col("text_sha256").isNotNull().alias("text")).toArrow()
    if twice := repeated(found["entity_id"]):
        raise DataError(f"{job.space.knowledge(entity)} holds {entity} {', '.join(map(repr, twice))} more "
                        f"than once: publish {job.space.dt} again")
    known = found.filter(found["text"])["entity_id"].combine_chunks().cast(pa.string())
    return known, len(found) - len(known)
