"""``dare-job data prepare``: converts the original files to a data set, atomically.

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
from dare_job.data.input.prepare import InputCounts
from dare_job.data.paper import Options, report, splits
from dare_job.errors import DataError
from dare_job.models import files as models_files
from dare_job.observe.progress import doing
from dare_job.spark.tables import read_parquet, write_parquet
from dare_job.storage import atomic_folder, paths
from dare_job.workspace import MANIFEST, write_json

_GROUP_ROWS = 1 << 17
Read = Callable[[Path, SparkSession], InputCounts]  # writes the contract tables into a folder

# The first three are the job's input with additional columns, which the job ignores.
INTERACTIONS = pa.schema([
    *schemas.INTERACTIONS,
    pa.field("place", pa.int32(), nullable=False),  # 1 to n in the user's history, oldest first
    pa.field("old", pa.bool_(), nullable=False),  # among the first m of n
    pa.field("new", pa.bool_(), nullable=False),  # among the last m of n
])

USERS = pa.schema([
    *schemas.USERS,
    pa.field("interactions", pa.int32(), nullable=False),  # n
    pa.field("window", pa.int32(), nullable=False),  # m, n/2 < m < n; n where n < 3
    pa.field("test", pa.bool_(), nullable=False),  # in the sample for speed measurements
])

ITEMS = pa.schema([
    *schemas.ITEMS,
    pa.field("existing", pa.bool_(), nullable=False),  # else newly introduced
    pa.field("test", pa.bool_(), nullable=False),  # in the sample for speed measurements; only new items
])

# ctr/train.parquet, valid.parquet, test.parquet: interactions after each user's old window
CTR = pa.schema([
    pa.field("user_id", pa.string(), nullable=False),
    pa.field("item_id", pa.string(), nullable=False),
    pa.field("label", pa.int8(), nullable=False),  # 1: rated at least the positive rating
    pa.field("rating", pa.float32(), nullable=False),
    pa.field("timestamp", pa.int64(), nullable=False),  # seconds since 1970, UTC
])


def prepare(name: str, sources: list[Path], read: Read, options: Options, spark: SparkSession) -> dict:
    """Write a data set to ``options.out``; returns its manifest.

    Parameters
    ----------
    name
        "movielens-10m" or "amazon-books".
    sources
        The original files or their folder.

    Raises
    ------
    DataError
        The files cannot be used, or the filters leave no training data.
    """
    staging = atomic_folder.stage_folder(options.out)
    with atomic_folder.remove_on_error(staging):
        record = _Preparation(staging, options, spark).run(read)
        with doing("computing the SHA-256 of the original files"):
            origin = [_identity(file) for source in sources for file in _files(source)]
        values = {key: value for key, value in asdict(options).items() if key != "out"}
        manifest = {"data": name, "schema_version": schemas.SCHEMA_VERSION, "sources": origin,
                    "options": values, "assumed": report.assumptions(name, options), **record,
                    "paper": report.COUNTS[name],
                    "ratio": report.ratios(record["counts"], report.COUNTS[name])}
        write_json(staging / MANIFEST, manifest)
        atomic_folder.replace(staging, options.out)
    return manifest


class _Preparation:
    """The steps of the preparation. Each writes a table to disk, so no step holds its input in memory."""

    def __init__(self, folder: Path, options: Options, spark: SparkSession):
        self.folder, self.options, self.spark = folder, options, spark
        self.work = folder / "_work"
        self._saved = 0

    def run(self, read: Read) -> dict:
        """Write all tables; returns the counts for the manifest."""
        with doing("reading the original files"):
            counts = read(self.work / "input", self.spark)
        tables = {name: read_parquet(self.spark, self.work / "input" / f"{name}.parquet")
                  for name in ("interactions", "users", "items", "rejects")}
        record = {"input": asdict(counts) | {"first_broken": _first_broken(tables["rejects"])}}
        with doing("dropping unusable interactions"):
            usable, record["dropped"] = splits.usable_interactions(
                tables["interactions"], tables["items"], self.options, self._save)
        with doing("filtering users and items with few interactions"):
            core, record["core_rounds"] = splits.k_core(usable, self.options.min_user, self.options.min_item,
                                                         self._save)
        if core.isEmpty():
            raise DataError(self._nothing_left(counts.interactions, record["dropped"]))
        with doing("ordering histories and sampling test users and items"):
            record["counts"] = self._tables(core, tables)
        with doing("labelling and splitting"):
            record["ctr"] = self._ctr()
        paths.remove_tree(self.work)
        return record

    def _nothing_left(self, rows: int, dropped: dict[str, int]) -> str:
        if sum(dropped.values()) == rows:
            return (f"none of {rows} interactions can be used: {dropped['unrated']} have no rating, and the "
                    f"items of {dropped['untitled']} have no title (--untitled keep keeps these)")
        return (f"none of {rows} interactions remains with --min-user {self.options.min_user} and --min-item "
                f"{self.options.min_item}: lower these limits")

    def _tables(self, core: DataFrame, tables: dict[str, DataFrame]) -> dict:
        options = self.options
        self._write(splits.add_windows(core, options.history_share), "interactions", INTERACTIONS,
                    ["user_id", "place"])
        interactions = self._read("interactions")
        sampling = (options.sample, options.seed)
        self._write(splits.user_table(interactions, tables["users"], *sampling), "users", USERS, ["user_id"])
        self._write(splits.item_table(interactions, tables["items"], *sampling), "items", ITEMS, ["item_id"])
        sums = interactions.agg(
            F.min("timestamp").alias("first_second"), F.max("timestamp").alias("last_second"),
            F.count_if(F.col("rating") >= options.positive).alias("positive")).first().asDict()
        rows = {name: pq.read_metadata(self.folder / f"{name}.parquet").num_rows
                for name in ("users", "items", "interactions")}
        return {**rows, **sums, **self._flags("users", "test"), **self._flags("items", "existing", "test")}

    def _flags(self, name: str, *columns: str) -> dict[str, int]:
        """Number of users or items with each flag."""
        sums = [F.count_if(column).alias(f"{column}_{name}") for column in columns]
        return self._read(name).agg(*sums).first().asDict()

    def _ctr(self) -> dict:
        (self.folder / "ctr").mkdir()
        rows = self._save(splits.ctr_rows(self._read("interactions"), self.options.positive))
        tied = rows.where("tied").count()
        split, bounds = splits.assign_parts(rows.where("not tied"), self.options)
        split = self._save(split)
        grouped = split.groupBy("part").agg(
            F.count("*").alias("rows"), F.sum("label").alias("positive"),
            F.min("timestamp").alias("first_second"), F.max("timestamp").alias("last_second"))
        by_part = {row.pop("part"): row for row in (row.asDict() for row in grouped.collect())}
        counts = {part: by_part.get(part, {"rows": 0, "positive": 0}) for part in splits.PARTS}
        splits.require_parts(counts, self.options.split)
        for part in splits.PARTS:
            self._write(split.where(F.col("part") == part), f"ctr/{part}", CTR,
                        ["timestamp", "user_id", "item_id", "rating"])
        return {**counts, "tied_left_out": tied, **bounds}

    def _read(self, name: str) -> DataFrame:
        return read_parquet(self.spark, self.folder / f"{name}.parquet")

    def _save(self, table: DataFrame) -> DataFrame:
        """Compute a table once and save it; removes the previously saved table."""
        before, self._saved = self.work / f"{self._saved}", self._saved + 1
        folder = self.work / f"{self._saved}"
        write_parquet(table, folder)
        paths.remove_tree(before)
        return read_parquet(self.spark, folder)

    def _write(self, table: DataFrame, name: str, schema: pa.Schema, order: list[str]) -> None:
        """Write a table reproducibly: one file, totally ordered, with equal row groups."""
        parts, rest = self.work / "parts", schema.empty_table()
        write_parquet(table.select(*schema.names).orderBy(*order), parts)
        with pq.ParquetWriter(self.folder / f"{name}.parquet", schema) as file:
            for part in sorted(parts.glob("part-*.parquet")):
                rest = pa.concat_tables([rest, pq.ParquetFile(part).read().cast(schema)])
                full = rest.num_rows // _GROUP_ROWS * _GROUP_ROWS
                if full:
                    file.write_table(rest.slice(0, full), _GROUP_ROWS)
                    rest = rest.slice(full)
            file.write_table(rest)
        paths.remove_tree(parts)


def _first_broken(rejects: DataFrame) -> dict | None:
    """Location of the first unusable line, and the reason."""
    broken = rejects.where(~F.contains("reason", F.lit("is a duplicate")))
    first = broken.agg(F.min(F.struct("line", "source", "reason", "raw"))).first()[0]
    return first and first.asDict()


def _files(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]


def _identity(file: Path) -> dict:
    return {"name": file.name, "bytes": file.stat().st_size, "sha256": models_files.sha256(file)}
