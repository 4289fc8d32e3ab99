"""Inputs of features: the published texts of a date, and the vectors and codebooks of previous features."""

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
class PreviousFeatures:
    """Features of an entity type on ``dt``, which may be the date of this run."""

    dt: str
    folder: AnyPath
    manifest: dict

    def is_from(self, encoder: dict) -> bool:
        """Whether the vectors come from an encoder with the same ``sha256`` and ``window``."""
        return all(self.manifest["encoder"][name] == encoder[name] for name in ("sha256", "window"))

    def codebooks(self) -> Codebooks:
        """Read the codebooks.

        Raises
        ------
        DataError
            As ``clusters.read``.
        """
        entry = self.manifest["codebook"]
        return clusters.read(self.folder / entry["file"], entry["sha256"])

    def rows(self, job: Job) -> DataFrame:
        """(text_sha256, vector, reused)"""
        files = [self.folder / name for name in sorted(self.manifest["files"])]
        table = read_parquet(job.spark, *files, columns=("text_sha256", "vector"))
        return table.select("text_sha256", "vector", F.lit(True).alias("reused"))

    @property
    def sizes(self) -> list[int]:
        """Requested size of each level of the codebooks; empty without codebooks."""
        return (self.manifest["codebook"] or {}).get("sizes", [])


def previous_features(space: Workspace, entity: str) -> PreviousFeatures | None:
    """The features that this run starts from; None without any.

    Raises
    ------
    DataError
        Their manifest is damaged.
    """
    dt = space.feature_source_date(entity)
    if dt is None:
        return None
    folder = space.features(entity, dt)
    return PreviousFeatures(dt, folder, published.read_manifest(folder))


def refit_reason(previous: PreviousFeatures | None, encoder: dict, settings: EncodeSettings,
                 texts: int) -> str | None:
    """Why new codebooks are fitted; None: the previous ones are reused."""
    if settings.refit:
        return "encode.refit"
    if previous is None or previous.manifest["codebook"] is None:
        return "no previous clusters"
    if not previous.is_from(encoder):
        return "the encoder changed"
    if previous.sizes != settings.clusters:
        return "encode.clusters changed"
    if previous.manifest["codebook"]["texts"] < min(max(settings.clusters), texts):
        return "the previous clusters were fitted to too few texts"
    return None


def require(job: Job) -> dict[str, dict]:
    """The manifests of the published texts by entity type.

    Raises
    ------
    DataError
        They are missing, damaged or not of this date.
    """
    if not job.space.is_published(job.space.dt):
        raise DataError(f"{job.space.dt} is not published in {job.space.out}: run "
                        f"`dare-job run --from publish --date {job.space.dt}` with the same options first")
    manifests = {entity: published.read_manifest(job.space.knowledge(entity)) for entity in ENTITIES}
    for entity, manifest in manifests.items():
        if manifest.get("date") != job.space.dt:
            raise DataError(f"{job.space.knowledge(entity)} contains texts of {manifest.get('date')} "
                            f"according to its manifest: publish {job.space.dt} again, or restore its folder")
    return manifests


def read(job: Job, entity: str) -> DataFrame:
    """(entity_id, knowledge, text_sha256) of every published row; the hash is null without a text."""
    rows = published.read_texts(job, job.space.knowledge(entity), ["entity_id", "knowledge"])
    is_text = F.col("knowledge").rlike(r"\S")
    return rows.withColumn("text_sha256", F.when(is_text, F.sha2("knowledge", 256)))


def entities(job: Job, entity: str, rows: DataFrame) -> tuple[pa.Array, int]:
    """Ids (n,) of the rows with a text, and the number of rows without one.

    Raises
    ------
    DataError
        An id occurs more than once.
    """
    table = rows.select("entity_id", F.col("text_sha256").isNotNull().alias("text")).toArrow()
    if twice := repeated(table["entity_id"]):
        raise DataError(f"{job.space.knowledge(entity)} contains {entity} {', '.join(map(repr, twice))} more "
                        f"than once: publish {job.space.dt} again")
    known = table.filter(table["text"])["entity_id"].combine_chunks().cast(pa.string())
    return known, len(table) - len(known)


@dataclass(frozen=True)
class Origin:
    """Where the vectors come from.

    Attributes
    ----------
    encoded
        Folder of the chunks that runs of this date encoded.
    previous
        Folder of the features with the reused vectors; empty: none are reused.
    dim
        Number of dimensions.
    """

    encoded: str
    previous: str
    dim: int


def matrix(rows: pa.Table, key: str, origin: Origin) -> np.ndarray:
    """The column ``vector`` of a table as (n, dim) float32.

    The column ``reused`` tells from which folder a row comes.

    Raises
    ------
    DataError
        A vector is missing, has another size, or is not finite; the message names its row (column ``key``)
        and its folder.
    """
    lists = rows["vector"].combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
    bad = lengths != origin.dim
    if not bad.any():
        values = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), origin.dim)
        bad = ~np.isfinite(values).all(axis=1)
        if not bad.any():
            return values.astype(np.float32)
    row = int(bad.argmax())
    folder, fix = origin.encoded, "remove that folder, and its texts are encoded again"
    if rows["reused"][row].as_py():
        folder = origin.previous
        fix = ("restore that folder from a copy, or remove it: its texts are encoded again, and clusters "
               "come from an older date or are fitted again")
    raise DataError(f"{folder}: the vector of {rows[key][row].as_py()!r} is missing, is not finite or does "
                    f"not have {origin.dim} dimensions: {fix}")
