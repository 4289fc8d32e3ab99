"""Waves: which rows of a run are generated first, so that the others can draft from their texts.

If no previous text of the current model and prompt exists, the first waves contain representative rows of
each entity type: medoids of the pools, in proportion to the pool sizes. The choice depends only on the rows
and their vectors, not on the partitioning.

If verification is lossy, a seeded sample of the other rows is a wave of its own after these. It is also
written strictly (``strict_sample``), and the waves after it can depend on what that shows.
"""

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job.embed import kmeans
from dare_job.generate import strict_sample
from dare_job.job import Job
from dare_job.schemas import ENTITIES, MODES_WITHOUT_POOLS
from dare_job.spark.tables import read_parquet
from dare_job.tables import published

_WAVE_ROWS = pa.schema([("entity", pa.string()), ("entity_id", pa.string()), ("wave", pa.int32())])
_MIN_ROWS = 8  # an index of fewer texts does not pay off
_BANDS = 8  # parts of the last wave, by value, if a run may stop early
_FIRST_SHARE, _SHARE = 8, 2  # a wave takes at most 1/2 of the waiting rows; 1/8 if there are no texts yet


def wave_sizes(sizes: Sequence[int], waiting: int, texts: int = 0) -> list[int]:
    """Number of rows of each wave before the last.

    Each wave grows the index to the next of ``sizes``, but takes only a share of the waiting rows, as its own
    rows have worse drafts. Waves that would not double the index or have less than ``_MIN_ROWS`` rows are
    skipped.

    Parameters
    ----------
    sizes
        Index sizes (setting ``waves.sizes``).
    waiting
        Rows to generate.
    texts
        Texts that are already in the index.
    """
    waves = []
    for size in sizes:
        rows = min(size - texts, waiting // (_SHARE if texts else _FIRST_SHARE))
        if rows >= max(_MIN_ROWS, texts):
            waves.append(rows)
            texts, waiting = texts + rows, waiting - rows
    return waves


def uses_waves(job: Job, entity: str) -> bool:
    """Whether the rows of an entity type are generated in waves.

    With ``auto``, if there is no previous text or its manifest names another model, tokenizer or prompt.
    Text without a manifest is assumed to come from the current model and prompt.
    """
    when = job.config.waves.when
    if job.config.decode.mode in MODES_WITHOUT_POOLS or job.config.decode.nodes == 0 or when == "never":
        return False
    old = published.previous_folder(job, entity)
    return when == "always" or old is None or bool(published.writer_changes(job, old, entity))


def add_waves(job: Job, rows: DataFrame, texts: dict[str, int]) -> tuple[DataFrame, list[str], int]:
    """Add column ``wave`` (int, from 1).

    Parameters
    ----------
    texts
        Number of texts of this run that are already finished, by entity type; the index starts with them.

    Returns
    -------
    rows : DataFrame
    drafting : list of str
        Entity types whose waves draft from earlier ones.
    sample : int
        Wave of the rows that are also written strictly; 0: there is none.
    """
    drafting = [entity for entity in ENTITIES if uses_waves(job, entity)]
    has_prompt = F.col("prompt").isNotNull() & F.col("error").isNull()
    candidates = rows.where(F.col("entity").isin(drafting) & has_prompt)
    counts = candidates.groupBy("entity", "pool").count().collect() if drafting else []
    members: dict[str, dict[str, int]] = {entity: {} for entity in drafting}
    for row in counts:
        members[row["entity"]][row["pool"]] = row["count"]
    shares = {(entity, pool): waves for entity in drafting for pool, waves in _waves_by_pool(
        members[entity], wave_sizes(job.config.waves.sizes, sum(members[entity].values()),
                                       texts.get(entity, 0))).items()}
    rest = 1
    if shares:
        first = job.spark.createDataFrame(_choose_rows(job, candidates, shares))
        rest += max(wave for waves in shares.values() for wave in waves)
        rows = rows.join(F.broadcast(first), ["entity", "entity_id"], "left")
        rows = rows.withColumn("wave", F.coalesce("wave", F.lit(rest)))
    else:
        rows = rows.withColumn("wave", F.lit(rest))
    rows, sample = strict_sample.split_wave(job, rows, rest)
    return _in_bands(job, rows, rest + 1 if sample else rest), drafting, sample


def _in_bands(job: Job, rows: DataFrame, last: int) -> DataFrame:
    """Split wave ``last`` by the rank of its rows if the run may have to stop before all are written.

    Workers write a wave after the other, so the most valuable rows are there when time runs out.
    """
    if not job.config.refresh.is_timed:
        return rows
    inside = rows.where((F.col("wave") == last) & F.col("rank").isNotNull())
    edges = inside.approxQuantile("rank", [band / _BANDS for band in range(1, _BANDS)], 0.001)
    bands = [(F.col("rank") > edge).cast("int") for edge in sorted(set(edges))]
    band = sum(bands, F.lit(0)) if bands else F.lit(0)
    return rows.withColumn("wave", F.when(F.col("wave") == last, last + F.coalesce(band, F.lit(0))).otherwise(
        F.col("wave")).cast("int"))


def _waves_by_pool(members: dict[str, int], waves: list[int]) -> dict[str, list[int]]:
    """Wave of each representative that a pool provides, as in ``{"collaborative-0001": [1, 1, 2]}``."""
    remaining, waves_of = dict(members), {}
    for wave, rows in enumerate(waves, start=1):
        for pool, count in kmeans.quotas(remaining, rows).items():
            waves_of.setdefault(pool, []).extend([wave] * count)
            remaining[pool] -= count
    return waves_of


def _choose_rows(job: Job, candidates: DataFrame, shares: dict[tuple[str, str], list[int]]) -> pa.Table:
    """``_WAVE_ROWS`` of the rows in all waves before the last."""
    pools = F.broadcast(job.spark.createDataFrame(list(shares), "entity string, pool string"))
    vectors = [read_parquet(job.spark, job.space.stage("embed") / f"entity={entity}").withColumn(
        "entity", F.lit(entity)) for entity in sorted({entity for entity, _ in shares})]
    vectors = reduce(DataFrame.unionByName, vectors)
    members = candidates.select("entity", "entity_id", "pool", F.xxhash64("entity_id").alias("rank"))
    members = members.join(pools, ["entity", "pool"]).join(vectors, ["entity", "entity_id"], "left")

    def choose(key, table):
        return choose_representatives(table, shares[key[0].as_py(), key[1].as_py()])

    picked = members.groupBy("entity", "pool").applyInArrow(
        choose, "entity string, entity_id string, wave int").toArrow()
    return picked.sort_by([("entity", "ascending"), ("entity_id", "ascending")])


def choose_representatives(members: pa.Table, waves: list[int]) -> pa.Table:
    """Choose one representative of a pool per entry of ``waves``; a table with schema ``_WAVE_ROWS``.

    Members with a vector come first: the medoid, then always the member farthest from those already chosen.
    Members without a vector follow by ``rank``.

    Parameters
    ----------
    members
        Table (entity, entity_id, rank, vector) of one pool.
    """
    members = members.sort_by("entity_id")
    embedded = members.filter(pc.is_valid(members["vector"]))
    lists = embedded["vector"].combine_chunks()
    vectors = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1) if len(lists) else []
    names = embedded["entity_id"].to_pylist()
    ids = [names[place] for place in kmeans.farthest_points(vectors, len(waves))]
    others = members.filter(pc.is_null(members["vector"]))
    others = others.sort_by([("rank", "ascending"), ("entity_id", "ascending")])
    ids = (ids + others["entity_id"].to_pylist())[:len(waves)]
    return pa.table([members["entity"][:len(ids)].combine_chunks(), ids, waves[:len(ids)]], schema=_WAVE_ROWS)
