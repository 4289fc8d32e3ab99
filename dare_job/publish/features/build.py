"""Builds the features of an entity type for a date: vectors of its texts, ids, clusters, files."""

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
from dare_job.publish.features.encode_tasks import EncodeTask
from dare_job.publish.features.inputs import Origin, PreviousFeatures, matrix
from dare_job.publish.features.write import Layout, Written
from dare_job.spark.tables import read_parquet
from dare_job.storage import lock, paths
from dare_job.storage.paths import AnyPath

ROW_GROUP_ROWS = 8192  # rows of a Parquet row group, except the last
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Night:
    """Inputs of the features of an entity type.

    Attributes
    ----------
    encoder
        As in the manifest: name, revision, sha256, window.
    work
        Folder whose files a killed run continues with.
    """

    job: Job
    entity: str
    encoder: dict
    task: EncodeTask
    work: AnyPath

    def make(self, staging: AnyPath) -> dict | None:
        """Write files and codebooks and return the manifest entries; None, with a warning, without texts.

        Raises
        ------
        DataError
            The date was published again in the meantime.
        """
        job = self.job
        rows = inputs.read(job, self.entity)
        known, without_text = inputs.entities(job, self.entity, rows)
        if not len(known):
            _LOG.warning("no %s has a text on %s, so no features of %ss are written", self.entity,
                         job.space.dt, self.entity)
            return None
        previous = inputs.previous_features(job.space, self.entity)
        all_ids = ids.extended(job.space.out / "features" / "ids", self.entity, known,
                             previous.manifest["ids"] if previous else 0)
        current = all_ids.filter(pc.is_in(all_ids["entity_id"], value_set=known))
        rows = rows.where(F.col("text_sha256").isNotNull())
        encoding = self._encode(rows, previous)
        origin = self._origin(previous)
        books, codebook, why = self._codebooks(rows, previous, len(current), origin)
        layout = Layout(str(staging.resolve()), f"part-{secrets.token_hex(4)}",
                        self._schema(origin.dim, books), books, ROW_GROUP_ROWS, origin)
        written = self._write(rows, self._vectors(previous), current, layout)
        if books:
            clusters.write(staging / codebook["file"], books)
            codebook, drift = _drift(codebook, written)
        return {
            "encoder": self.encoder | {"dim": origin.dim}, "ids": len(all_ids), "files": written.files,
            "counts": {"rows": written.rows, "reused": written.reused, "without_text": without_text,
                       "encoded": written.rows - written.reused},
            "codebook": codebook, "new_clusters": why, "drift": drift if books else None,
            "encoding": encoding, "row_group_rows": ROW_GROUP_ROWS}

    def _encode(self, rows: DataFrame, previous: PreviousFeatures | None) -> dict:
        """Encode the texts that have no vector yet; returns ``encode_tasks.record``."""
        missing = rows.dropDuplicates(["text_sha256"]).select("text_sha256", "knowledge")
        known = self._vectors(previous)
        if known is not None:
            missing = missing.join(known.select("text_sha256"), "text_sha256", "left_anti")
        count = missing.count()
        if not count:
            return encode_tasks.record([])
        lock.require_held()
        return encode_tasks.encode(self.job, self.task, missing, count, self.work / "vectors")

    def _vectors(self, previous: PreviousFeatures | None) -> DataFrame | None:
        """(text_sha256, vector, reused), one row per text with a vector."""
        parts, folder = [], self.work / "vectors"
        if previous and previous.is_from(self.encoder):
            parts.append(previous.rows(self.job))
        if any(folder.glob("part-*.parquet")):
            encoded = read_parquet(self.job.spark, folder, columns=("text_sha256", "vector"))
            parts.append(encoded.select("text_sha256", "vector", F.lit(False).alias("reused")))
        if not parts:
            return None
        return reduce(lambda left, right: left.unionByName(right), parts).dropDuplicates(["text_sha256"])

    def _origin(self, previous: PreviousFeatures | None) -> Origin:
        encoded = self.work / "vectors"
        if previous and previous.is_from(self.encoder):
            return Origin(str(encoded), str(previous.folder), previous.manifest["encoder"]["dim"])
        return Origin(str(encoded), "", self._vectors(None).select(F.size("vector")).first()[0])

    def _codebooks(self, rows: DataFrame, previous: PreviousFeatures | None, count: int,
                   origin: Origin) -> tuple[Codebooks | None, dict | None, str | None]:
        """Codebooks, their manifest entry, and why they are new; None: the previous ones are reused."""
        settings = self.job.config.encode
        if not settings.clusters:
            return None, None, None
        why = inputs.refit_reason(previous, self.encoder, settings, count)
        if why is None:
            return previous.codebooks(), previous.manifest["codebook"], None
        largest = max(settings.clusters)
        if count < largest:
            _LOG.warning("%d texts of %ss are fewer than %d clusters (encode.clusters): each text is its own "
                         "cluster until a run with more texts fits new clusters", count, self.entity, largest)
        with progress.doing(f"fitting clusters of {self.entity}s"):
            sample = rows.select("text_sha256").join(self._vectors(previous), "text_sha256")
            sample = sample.orderBy("text_sha256").limit(largest * clusters.POINTS_PER_CENTROID).toArrow()
            books = clusters.fit(matrix(sample, "text_sha256", origin), settings.clusters,
                                 self.job.config.seed)
        return books, {"file": clusters.name(books), "sha256": books.sha256, "sizes": settings.clusters,
                       "fitted": self.job.space.dt, "texts": count}, why

    def _schema(self, dim: int, books: Codebooks | None) -> pa.Schema:
        schema = schemas.features(dim, len(books.sizes) if books else 0)
        entries = {"encoder": self.encoder["name"], "encoder_sha256": self.encoder["sha256"],
                   "codebook_sha256": books.sha256 if books else "", "dt": self.job.space.dt}
        return schema.with_metadata(
            schema.metadata | {f"dare_job.{key}": value for key, value in entries.items()})

    def _write(self, rows: DataFrame, vectors: DataFrame, current: pa.Table, layout: Layout) -> Written:
        job, path = self.job, self.work / "numbers" / "part-0.parquet"
        numbers = write.assign_files(current, layout.group, job.spark.sparkContext.defaultParallelism)
        paths.make_folder(path.parent)
        with paths.arrow_sink(path) as sink:
            pq.write_table(numbers, sink)
        numbered = read_parquet(job.spark, path.parent, columns=numbers.column_names)
        joined = rows.select("entity_id", "text_sha256").join(numbered, "entity_id")
        joined = joined.join(vectors, "text_sha256")
        with progress.doing(f"writing features of {self.entity}s"):
            written = write.write(joined, int(np.max(numbers["file"])) + 1, layout)
        if written.rows != len(current):
            raise DataError(f"{job.space.knowledge(self.entity)}: {written.rows} of {len(current)} texts "
                            f"have a vector, because {job.space.dt} was published again in the meantime: run "
                            f"`dare-job run --from encode --date {job.space.dt}` with the same options")
        return written


def _drift(codebook: dict, written: Written) -> tuple[dict, dict]:
    """The manifest entry of the codebooks with their error when they were fitted, and the drift since then.

    Returns
    -------
    dict
        ``error``, the mean squared distance of a vector from the sum of its centroids, and ``ratio``, the
        current error divided by that at fitting time, None if that was 0.
    """
    error = written.distance / written.rows
    fitted = codebook.setdefault("error", error)
    ratio = error / fitted if fitted > 0 else None
    return codebook, {"error": error, "ratio": ratio}
