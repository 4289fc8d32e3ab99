"""What tonight's features take from those of another date: vectors of the same texts, codebooks."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job import knowledge
from dare_job.config import EncodeSettings
from dare_job.features import clusters
from dare_job.features.clusters import Codebooks
from dare_job.files import AnyPath
from dare_job.job import Job
from dare_job.spark.reading import read_parquet
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
    dt = space.encoded_before(entity)
    if dt is None:
        return None
    folder = space.features(entity, dt)
    return Before(dt, folder, knowledge.manifest(folder))


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
