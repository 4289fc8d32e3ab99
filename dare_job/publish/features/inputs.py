"""What tonight's features take from those of another date: vectors of the same texts, codebooks.

The published texts of a date, and what they have to be before they are encoded.

Vectors of Arrow tables as a matrix, or the row that is damaged.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job.config.settings import EncodeSettings
from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.publish.features import clusters
from dare_job.publish.features.clusters import Codebooks
from dare_job.publish.features.ids import repeated
from dare_job.schemas import ENTITIES
from dare_job.spark.tables import read_parquet
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.workspace import Workspace


@dataclass(frozen=True)
class Before:
    """Features of an entity type on ``dt``, which may be tonight's own date."""

    dt: str
    folder: AnyPath
    manifest: dict

    def is_of(self, encoder: dict) -> bool:
        """Whether the vectors are those that an encoder (``sha256``, ``window``) would give."""
        return all(self.manifest["encoder"][name] == encoder[name] for name in ("sha256", "window"))

    def codebooks(self) -> Codebooks:
        """Raises DataError where their file is damaged."""
        found = self.manifest["codebook"]
        return clusters.read(self.folder / found["file"], found["sha256"])

    def rows(self, job: Job, codebooks: Codebooks | None) -> DataFrame:
        """(text_sha256, vector, reused, before); ``before``: last cluster id, with these codebooks."""
        last = F.lit(None)
        if codebooks and (self.manifest["codebook"] or {}).get("sha256") == codebooks.sha256:
            last = F.col(f"cluster_{len(codebooks.sizes) - 1}")
        names = {"text_sha256", "vector", *(f"cluster_{level}" for level in range(len(self.sizes)))}
        files = [self.folder / name for name in sorted(self.manifest["files"])]
        table = read_parquet(job.spark, *files, columns=names)
        return table.select("text_sha256", "vector", F.lit(True).alias("reused"),
                            last.cast("int").alias("before"))

    @property
    def sizes(self) -> list[int]:
        return (self.manifest["codebook"] or {}).get("sizes", [])


def find(space: Workspace, entity: str) -> Before | None:
    """The features that tonight's begin with. Raises DataError where their manifest is damaged."""
    dt = space.feature_source_date(entity)
    if dt is None:
        return None
    folder = space.features(entity, dt)
    return Before(dt, folder, published.read_manifest(folder))


def why_new(before: Before | None, encoder: dict, settings: EncodeSettings, texts: int) -> str | None:
    """Why codebooks are made tonight; None: those of before serve."""
    if settings.refit:
        return "encode.refit"
    if before is None or before.manifest["codebook"] is None:
        return "there were none"
    if not before.is_of(encoder):
        return "another encoder"
    if before.sizes != settings.clusters:
        return "other encode.clusters"
    fitted = before.manifest["codebook"]["texts"]
    return "they were made from too few texts" if fitted < min(max(settings.clusters), texts) else None


def require(job: Job) -> dict[str, dict]:
    """The manifests of the date's texts by entity type. Raises DataError where they are not this date's."""
    if not job.space.is_published(job.space.dt):
        raise DataError(f"{job.space.dt} is not published in {job.space.out}: run "
                        "`dare-job run --from publish` with "
                        f"--date {job.space.dt} first")
    found = {entity: published.read_manifest(job.space.knowledge(entity)) for entity in ENTITIES}
    for entity, manifest in found.items():
        if manifest.get("date") != job.space.dt:
            raise DataError(f"{job.space.knowledge(entity)} holds texts of {manifest.get('date')}, as its "
                            f"manifest says: publish {job.space.dt} again, or put its own folder back")
    return found


def read(job: Job, entity: str) -> DataFrame:
    """(entity_id, knowledge, text_sha256) of every published row; the hash is null where there is no text."""
    rows = published.read_texts(job, job.space.knowledge(entity), ["entity_id", "knowledge"])
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


@dataclass(frozen=True)
class Origin:
    """Where tonight's vectors come from.

    made    folder of the chunks that this date's runs encoded
    before  folder of the features that reused vectors are taken from; empty: none are
    dim     numbers of a vector
    """

    made: str
    before: str
    dim: int


def matrix(rows: pa.Table, key: str, origin: Origin) -> np.ndarray:
    """(n, dim) float32 of a table's ``vector``; ``reused`` says which are of before, ``key`` names rows.

    Raises DataError that names row and folder where a vector is missing, of another size, or not finite.
    """
    lists = rows["vector"].combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
    bad = lengths != origin.dim
    if not bad.any():
        found = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), origin.dim)
        bad = ~np.isfinite(found).all(axis=1)
        if not bad.any():
            return found.astype(np.float32)
    row = int(bad.argmax())
    raise DataError(_said(rows[key][row].as_py(), int(lengths[row]), rows["reused"][row].as_py(), origin))


def _said(name: str, length: int, reused: bool, origin: Origin) -> str:
    if length < 0:
        wrong = "is missing"
    elif length != origin.dim:
        wrong = f"has {length} numbers, not {origin.dim}"
    else:
        wrong = "has a number that is not finite"
    fix = "remove that folder, its texts are encoded again"
    if reused:
        fix = ("put a whole copy of that folder in its place, or remove it: its texts are encoded again, and "
               "clusters are those of an older date, or new ones")
    return f"{origin.before if reused else origin.made}: the vector of {name!r} {wrong}: {fix}"
