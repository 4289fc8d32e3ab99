"""One entity type's features of a date: vectors of its texts, ids, clusters, files."""

import logging
import secrets
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job import schemas
from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.publish.features import clusters, encode_tasks, ids, inputs, write
from dare_job.publish.features.clusters import Codebooks
from dare_job.publish.features.encode_tasks import EncodeTask, Stats
from dare_job.publish.features.inputs import Before, Origin, matrix
from dare_job.publish.features.write import Layout, Written
from dare_job.spark.tables import read_parquet
from dare_job.storage import lock, paths
from dare_job.storage.paths import AnyPath

ROW_GROUP_ROWS = 8192  # rows of a Parquet row group, except the last
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Night:
    """What the features of an entity type are made from.

    encoder  as the manifest says it: name, revision, sha256, window
    work     folder of what a killed night keeps
    """

    job: Job
    entity: str
    encoder: dict
    task: EncodeTask
    work: AnyPath

    def make(self, staging: AnyPath) -> dict | None:
        """Write files and codebooks; what the manifest says of them. None, with a warning: no text."""
        job = self.job
        rows = inputs.read(job, self.entity)
        known, without = inputs.entities(job, self.entity, rows)
        if not len(known):
            _LOG.warning("no %s has a text on %s: there are no features of %ss", self.entity, job.space.dt,
                         self.entity)
            return None
        old = inputs.find(job.space, self.entity)
        every = ids.extended(job.space.out / "features" / "ids", self.entity, known,
                             old.manifest["ids"] if old else 0)
        tonight = every.filter(pc.is_in(every["entity_id"], value_set=known))
        rows = rows.where(F.col("text_sha256").isNotNull())
        stats = self._encode(rows, old)
        origin = self._origin(old)
        books, codebook, why = self._codebooks(rows, old, len(tonight), origin)
        layout = Layout(str(staging.resolve()), f"part-{secrets.token_hex(4)}",
                        self._schema(origin.dim, books), books, ROW_GROUP_ROWS, origin)
        written = self._write(rows, self._vectors(old, books), tonight, layout)
        if books:
            clusters.write(staging / codebook["file"], books)
            codebook, drift = _drift(codebook, written)
        return {
            "encoder": self.encoder | {"dim": origin.dim}, "ids": len(every), "files": written.files,
            "counts": {"rows": written.rows, "reused": written.reused, "without_text": without,
                       "encoded": written.rows - written.reused},
            "codebook": codebook, "new_clusters": why, "drift": drift if books else None,
            "encoding": stats.record(), "row_group_rows": ROW_GROUP_ROWS}

    def _encode(self, rows: DataFrame, old: Before | None) -> Stats:
        """Encode the texts that have no vector yet."""
        missing = rows.dropDuplicates(["text_sha256"]).select("text_sha256", "knowledge")
        there = self._vectors(old)
        if there is not None:
            missing = missing.join(there.select("text_sha256"), "text_sha256", "left_anti")
        count = missing.count()
        if not count:
            return Stats()
        lock.require_held()
        return encode_tasks.encode(self.job, self.task, missing, count, self.work / "vectors")

    def _vectors(self, old: Before | None, books: Codebooks | None = None) -> DataFrame | None:
        """(text_sha256, vector, reused, before), a row a text that has a vector; see ``Before``."""
        parts, folder = [], self.work / "vectors"
        if old and old.is_of(self.encoder):
            parts.append(old.rows(self.job, books))
        if any(folder.glob("part-*.parquet")):
            made = read_parquet(self.job.spark, folder, columns=("text_sha256", "vector"))
            parts.append(made.select("text_sha256", "vector", F.lit(False).alias("reused"),
                                     F.lit(None).cast("int").alias("before")))
        if not parts:
            return None
        return reduce(lambda one, other: one.unionByName(other), parts).dropDuplicates(["text_sha256"])

    def _origin(self, old: Before | None) -> Origin:
        made = self.work / "vectors"
        if old and old.is_of(self.encoder):
            return Origin(str(made), str(old.folder), old.manifest["encoder"]["dim"])
        return Origin(str(made), "", self._vectors(None).select(F.size("vector")).first()[0])

    def _codebooks(self, rows: DataFrame, old: Before | None, count: int,
                   origin: Origin) -> tuple[Codebooks | None, dict | None, str | None]:
        """Codebooks, what the manifest says of them, and why they are new; None: those of before serve."""
        settings = self.job.config.encode
        if not settings.clusters:
            return None, None, None
        why = inputs.why_new(old, self.encoder, settings, count)
        if why is None:
            return old.codebooks(), old.manifest["codebook"], None
        most = max(settings.clusters)
        if count < most:
            _LOG.warning("%d texts of %ss are fewer than %d clusters (encode.clusters): each is a cluster of "
                         "its own until a night with more texts makes new ones", count, self.entity, most)
        with progress.doing(f"clusters of {self.entity}s"):
            sample = rows.select("text_sha256").join(self._vectors(old), "text_sha256").orderBy("text_sha256")
            sample = sample.limit(most * clusters.POINTS_PER_CENTROID).toArrow()
            books = clusters.fit(matrix(sample, "text_sha256", origin), settings.clusters,
                                 self.job.config.seed)
        return books, {"file": clusters.name(books), "sha256": books.sha256, "sizes": settings.clusters,
                       "fitted": self.job.space.dt, "texts": count}, why

    def _schema(self, dim: int, books: Codebooks | None) -> pa.Schema:
        found = schemas.features(dim, len(books.sizes) if books else 0)
        said = {"encoder": self.encoder["name"], "encoder_sha256": self.encoder["sha256"],
                "codebook_sha256": books.sha256 if books else "", "dt": self.job.space.dt}
        return found.with_metadata(found.metadata | {f"dare_job.{key}": value for key, value in said.items()})

    def _write(self, rows: DataFrame, vectors: DataFrame, tonight: pa.Table, layout: Layout) -> Written:
        job, path = self.job, self.work / "numbers" / "part-0.parquet"
        numbers = write.numbered(tonight, layout.group, job.spark.sparkContext.defaultParallelism)
        paths.make_folder(path.parent)
        with paths.arrow_sink(path) as sink:
            pq.write_table(numbers, sink)
        numbered = read_parquet(job.spark, path.parent, columns=numbers.column_names)
        found = rows.select("entity_id", "text_sha256").join(numbered, "entity_id")
        found = found.join(vectors, "text_sha256")
        with progress.doing(f"writing features of {self.entity}s"):
            written = write.write(found, int(np.max(numbers["file"])) + 1, layout)
        if written.rows != len(tonight):
            raise DataError(f"{job.space.knowledge(self.entity)}: {written.rows} of {len(tonight)} texts got "
                            f"a vector: {job.space.dt} was published again: run `dare-job run --from encode`")
        return written


def _drift(codebook: dict, written: Written) -> tuple[dict, dict]:
    """Codebooks' record with their error on the night that they were made; how tonight's vectors compare.

    error  mean squared distance of a vector from the sum of its centroids
    ratio  that over the error at first; None where there was none
    """
    error = written.distance / written.rows
    first = codebook.setdefault("error", error)
    ratio = error / first if first > 0 else None
    return codebook, {"error": error, "ratio": ratio, "compared": written.compared, "moved": written.moved}
