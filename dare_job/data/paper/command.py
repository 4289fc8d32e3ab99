"""``dare-job data prepare``: reads the original files, and leaves a folder that is whole or not there at all.

    OUT/interactions.parquet users.parquet items.parquet   input of ``dare-job run``
    OUT/ctr/train.parquet valid.parquet test.parquet       labelled rows
    OUT/_manifest.json                                     options, counts, sources with their SHA-256
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dare_job import schemas
from dare_job.data.paper import report, splits
from dare_job.data.paper.options import COUNTS, CTR, INTERACTIONS, ITEMS, USERS, Options
from dare_job.data.readers import InputCounts
from dare_job.errors import DataError
from dare_job.models import files as models_files
from dare_job.observe.progress import doing
from dare_job.spark.tables import read_parquet, write_parquet
from dare_job.storage import atomic, paths
from dare_job.workspace import MANIFEST, write_json

_GROUP_ROWS = 1 << 17
Read = Callable[[Path, SparkSession], InputCounts]  # writes the contract tables into a folder


def prepare(name: str, sources: list[Path], read: Read, options: Options, spark: SparkSession) -> dict:
    """Write ``options.out``; what the manifest says.

    name     movielens-10m or amazon-books
    sources  the original files, or the folder that holds them
    Raises DataError where they cannot be used, or the filters leave nothing to train on.
    """
    staging = atomic.stage_folder(options.out)
    with atomic.remove_on_error(staging):
        found = _Preparation(staging, options, spark).run(read)
        with doing("taking the SHA-256 of the original files"):
            origin = [_identity(file) for source in sources for file in _files(source)]
        chosen = {key: value for key, value in asdict(options).items() if key != "out"}
        manifest = {"data": name, "schema_version": schemas.SCHEMA_VERSION, "sources": origin,
                    "options": chosen, "assumed": report.assumptions(name, options), **found,
                    "paper": asdict(COUNTS[name]), "ratio": report.ratios(found["counts"], COUNTS[name])}
        write_json(staging / MANIFEST, manifest)
        atomic.replace(staging, options.out)
    return manifest


class _Preparation:
    """The steps, each a table on disk before the next begins: no step holds its input in memory."""

    def __init__(self, folder: Path, options: Options, spark: SparkSession):
        self.folder, self.options, self.spark = folder, options, spark
        self.work = folder / "_work"
        self._saved = 0

    def run(self, read: Read) -> dict:
        """Write all tables; the counts of the manifest."""
        with doing("reading the original files"):
            counts = read(self.work / "input", self.spark)
        known = {name: read_parquet(self.spark, self.work / "input" / f"{name}.parquet")
                 for name in ("interactions", "users", "items", "rejects")}
        found = {"input": asdict(counts) | {"first_broken": _first_broken(known["rejects"])}}
        with doing("dropping interactions that cannot be used"):
            usable, found["dropped"] = splits.usable_interactions(
                known["interactions"], known["items"], self.options, self._save)
        with doing("filtering users and items with few interactions"):
            core, found["core_rounds"] = splits.k_core(usable, self.options.min_user, self.options.min_item,
                                                        self._save)
        if core.isEmpty():
            raise DataError(self._nothing_left(counts.interactions, found["dropped"]))
        with doing("ordering histories, drawing halves and samples"):
            found["counts"] = self._tables(core, known)
        with doing("labelling and splitting"):
            found["ctr"] = self._ctr()
        paths.remove_tree(self.work)
        return found

    def _nothing_left(self, rows: int, dropped: dict[str, int]) -> str:
        if sum(dropped.values()) == rows:
            return (f"none of {rows} interactions can be used: {dropped['unrated']} have no rating, "
                    f"{dropped['untitled']} no title of their item (--untitled keep)")
        return (f"of {rows} interactions none is left at --min-user {self.options.min_user} and --min-item "
                f"{self.options.min_item}: lower them")

    def _tables(self, core: DataFrame, known: dict[str, DataFrame]) -> dict:
        options = self.options
        self._write(splits.add_windows(core, options.history_share), "interactions", INTERACTIONS,
                    ["user_id", "place"])
        interactions = self._read("interactions")
        drawn = (options.sample, options.seed)
        self._write(splits.user_table(interactions, known["users"], *drawn), "users", USERS, ["user_id"])
        self._write(splits.item_table(interactions, known["items"], *drawn), "items", ITEMS, ["item_id"])
        sums = interactions.agg(
            F.min("timestamp").alias("first_second"), F.max("timestamp").alias("last_second"),
            F.count_if(F.col("rating") >= options.positive).alias("positive")).first().asDict()
        rows = {name: pq.read_metadata(self.folder / f"{name}.parquet").num_rows
                for name in ("users", "items", "interactions")}
        return {**rows, **sums, **self._flags("users", "test"), **self._flags("items", "existing", "test")}

    def _flags(self, name: str, *columns: str) -> dict[str, int]:
        """How many users or items have each flag set."""
        sums = [F.count_if(column).alias(f"{column}_{name}") for column in columns]
        return self._read(name).agg(*sums).first().asDict()

    def _ctr(self) -> dict:
        (self.folder / "ctr").mkdir()
        rows = self._save(splits.ctr_rows(self._read("interactions"), self.options.positive))
        tied = rows.where("tied").count()
        parted, bounds = splits.assign_parts(rows.where("not tied"), self.options)
        parted = self._save(parted)
        counted = parted.groupBy("part").agg(
            F.count("*").alias("rows"), F.sum("label").alias("positive"),
            F.min("timestamp").alias("first_second"), F.max("timestamp").alias("last_second"))
        found = {row.pop("part"): row for row in (row.asDict() for row in counted.collect())}
        counts = {part: found.get(part, {"rows": 0, "positive": 0}) for part in splits.PARTS}
        splits.require_parts(counts, self.options.split)
        for part in splits.PARTS:
            self._write(parted.where(F.col("part") == part), f"ctr/{part}", CTR,
                        ["timestamp", "user_id", "item_id", "rating"])
        return {**counts, "tied_left_out": tied, **bounds}

    def _read(self, name: str) -> DataFrame:
        return read_parquet(self.spark, self.folder / f"{name}.parquet")

    def _save(self, table: DataFrame) -> DataFrame:
        """Compute a table once, on disk; the one saved before is no longer needed then."""
        before, self._saved = self.work / f"{self._saved}", self._saved + 1
        folder = self.work / f"{self._saved}"
        write_parquet(table, folder)
        paths.remove_tree(before)
        return read_parquet(self.spark, folder)

    def _write(self, table: DataFrame, name: str, schema: pa.Schema, order: list[str]) -> None:
        """Write a table as one file, in a total order and like row groups: the same rows, the same bytes."""
        parts, rest = self.work / "parts", schema.empty_table()
        write_parquet(table.select(*schema.names).orderBy(*order), parts)
        with pq.ParquetWriter(self.folder / f"{name}.parquet", schema) as file:
            for part in sorted(parts.glob("part-*.parquet")):
                rest = pa.concat_tables([rest, pq.ParquetFile(part).read().cast(schema)])
                whole = rest.num_rows // _GROUP_ROWS * _GROUP_ROWS
                if whole:
                    file.write_table(rest.slice(0, whole), _GROUP_ROWS)
                    rest = rest.slice(whole)
            file.write_table(rest)
        paths.remove_tree(parts)


def _first_broken(rejects: DataFrame) -> dict | None:
    """Where the first line that could not be used is, and why."""
    broken = rejects.where(~F.contains("reason", F.lit("is a duplicate")))
    first = broken.agg(F.min(F.struct("line", "source", "reason", "raw"))).first()[0]
    return first and first.asDict()


def _files(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]


def _identity(file: Path) -> dict:
    return {"name": file.name, "bytes": file.stat().st_size, "sha256": models_files.sha256(file)}
