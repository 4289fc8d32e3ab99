"""The strict texts of the sample's rows, and what was measured with them.

    generate/strict/entity=E/part-<shard>-<chunk>.parquet   strict texts of the rows in the chunk of this name
    generate/_loss.json                                     the loss (``publish/loss``), and what follows

The drafts of a strict text are the row's lossy text, the pools and the texts of earlier waves: where both
texts agree, few forward passes verify it.
"""

import json
from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job.errors import InfrastructureError
from dare_job.generate import shard_plan, wave_index
from dare_job.generate.shard_plan import ShardPlan
from dare_job.generate.strict_sample import FOLDER
from dare_job.job import Job
from dare_job.schemas import ENTITIES
from dare_job.spark.tables import read_parquet
from dare_job.storage.paths import AnyPath, parquet_dataset
from dare_job.tables import chunk_files, published
from dare_job.workspace import write_json

_RECORD = "_loss.json"


def folders(work: ShardPlan) -> list[AnyPath]:
    """Folders of the chunks of strict texts by entity type, in the order of ``ENTITIES``."""
    return [work.folder / FOLDER / entity.name for entity in work.entities]


def remaining_rows(job: Job, work: ShardPlan) -> DataFrame:
    """Rows of the sample with a lossy text and without a committed strict one: one partition per shard.

    Their lossy texts are in the column of the previous ones.
    """
    rows = shard_plan.uncommitted(job, work, work.sample_wave, folders(work))
    lossy = reduce(DataFrame.unionByName, [_drafts(job, entity, files) for entity, files in
                                           zip(ENTITIES, _lossy(work), strict=True) if files])
    rows = rows.drop("own_ids").join(lossy, ["entity", "entity_id"])
    return shard_plan.in_shards(rows, work, work.sample_wave)


def _drafts(job: Job, entity: str, files: list[AnyPath]) -> DataFrame:
    rows = read_parquet(job.spark, *files, columns=["entity_id", "token_ids", "error"])
    return rows.where(F.col("error").isNull()).select(
        F.lit(entity).alias("entity"), "entity_id", F.col("token_ids").alias("own_ids"))


def _lossy(work: ShardPlan) -> list[list[AnyPath]]:
    """Files of the sample's lossy texts by entity type."""
    waves = range(work.sample_wave, work.sample_wave + 1)
    return [wave_index.committed_chunks(work, waves, folder) for folder in work.entities]


def require_complete(work: ShardPlan) -> None:
    """Check that every lossy text of the sample has a row in the strict chunks, after all tasks have ended.

    Raises
    ------
    InfrastructureError
        Rows are missing.
    """
    if missing := lossy_texts(work) - chunk_files.Tally(folders(work)).update().rows:
        raise InfrastructureError(f"{work.folder / FOLDER} lacks {missing} rows of the sample after all "
                                  "tasks ended: run it again")


def lossy_texts(work: ShardPlan) -> int:
    """Number of the sample's rows that have a lossy text."""
    return sum(len(_texts(lossy)) for lossy in _lossy(work))


def twins(work: ShardPlan) -> Iterator[dict]:
    """``prompt, text, strict, tokens`` (of both) of the sample's rows with both texts, by entity and id."""
    rows = parquet_dataset(work.folder / "cut").to_table(
        columns=["entity", "entity_id", "prompt"], filter=pc.field("wave") == work.sample_wave)
    for entity, lossy, folder in zip(ENTITIES, _lossy(work), folders(work), strict=True):
        own = rows.filter(pc.equal(rows["entity"], entity))
        both = own.join(_texts(lossy), "entity_id", join_type="inner").join(
            _texts([*folder.glob("part-*.parquet")]), "entity_id", join_type="inner", right_suffix="_strict")
        for row in both.sort_by("entity_id").to_pylist():
            yield {"prompt": row["prompt"], "text": row["knowledge"], "strict": row["knowledge_strict"],
                   "tokens": (row["tokens_strict"], row["tokens"])}


def _texts(files: list[AnyPath]) -> pa.Table:
    """``entity_id, knowledge, tokens`` of the rows of some files that have a text."""
    return published.dataset_of_files(files).to_table(
        columns=["entity_id", "knowledge", "tokens"], filter=pc.field("error").is_null())


def represented(work: ShardPlan) -> int:
    """Number of rows that the sample represents: with a prompt, lossy, of its wave or a later one."""
    is_lossy = (pc.field("wave") >= work.sample_wave) & pc.field("prompt").is_valid() & (
        pc.field("error").is_null() & ~pc.field("strict"))
    return parquet_dataset(work.folder / "cut").count_rows(filter=is_lossy)


def read_loss(work: ShardPlan) -> dict | None:
    """The loss that was measured of the rows of a shard plan; None if it has not been."""
    try:
        record = json.loads((work.folder / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record["loss"] if record.get("token") == work.token else None


def write_loss(work: ShardPlan, loss: dict) -> None:
    """Record the loss. A resumed run does not measure it again."""
    write_json(work.folder / _RECORD, {"token": work.token, "loss": loss})
