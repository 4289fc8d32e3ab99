"""Waves: which of tonight's rows are written first, so that the rest draft from their texts.

Where no old text is of tonight's writer, the first wave is a few rows of each entity type that stand for the
others: medoids of the pools' members, in proportion to the pools' sizes. The choice depends on the rows and
their vectors alone, not on how they are spread over partitions.

How many rows each wave of a night takes: arithmetic alone.
"""

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job.embed import kmeans
from dare_job.job import Job
from dare_job.schemas import ENTITIES, MODES_WITHOUT_POOLS
from dare_job.spark.tables import read_parquet
from dare_job.tables import published

_MIN_ROWS = 8  # texts: an index of fewer drafts nothing worth a stage of its own

_FIRST_SHARE, _SHARE = 8, 2  # a wave is at most one of so many rows that wait; first: without any text


def wave_sizes(sizes: Sequence[int], waiting: int, texts: int = 0) -> list[int]:
    """Rows of each wave before the rest; ``texts`` are there already, ``waiting`` rows are to be written.

    A wave brings the index to the next of ``sizes`` (setting ``waves.sizes``), but takes no more than its
    share of the rows that wait, as it is written with worse drafts than they. One that would not double the
    index, or would be smaller than ``_FEWEST``, is left out.
    """
    found = []
    for size in sizes:
        rows = min(size - texts, waiting // (_SHARE if texts else _FIRST_SHARE))
        if rows >= max(_MIN_ROWS, texts):
            found.append(rows)
            texts, waiting = texts + rows, waiting - rows
    return found

_WAVE_ROWS = pa.schema([("entity", pa.string()), ("entity_id", pa.string()), ("wave", pa.int32())])


def uses_waves(job: Job, entity: str) -> bool:
    """Whether tonight's rows of an entity type come in waves.

    With ``auto`` where there is no old text, or where its manifest names another model, tokenizer or prompt.
    Text without a manifest counts as of tonight's writer, as nothing tells.
    """
    when = job.config.waves.when
    if job.config.decode.mode in MODES_WITHOUT_POOLS or job.config.decode.nodes == 0 or when == "never":
        return False
    old = published.previous_folder(job, entity)
    return when == "always" or old is None or bool(published.writer_changes(job, old, entity))


def add_waves(job: Job, rows: DataFrame, texts: dict[str, int]) -> tuple[DataFrame, list[str]]:
    """``rows`` with ``wave`` (int, from 1), and the entity types whose waves draft from those before.

    texts  finished texts of tonight by entity type, which are in the index before the first wave
    """
    drafting = [entity for entity in ENTITIES if uses_waves(job, entity)]
    has_prompt = F.col("prompt").isNotNull() & F.col("error").isNull()
    asked = rows.where(F.col("entity").isin(drafting) & has_prompt)
    counts = asked.groupBy("entity", "pool").count().collect() if drafting else []
    members: dict[str, dict[str, int]] = {entity: {} for entity in drafting}
    for row in counts:
        members[row["entity"]][row["pool"]] = row["count"]
    shares = {(entity, pool): waves for entity in drafting for pool, waves in _waves_by_pool(
        members[entity], wave_sizes(job.config.waves.sizes, sum(members[entity].values()),
                                       texts.get(entity, 0))).items()}
    if not shares:
        return rows.withColumn("wave", F.lit(1)), drafting
    first = job.spark.createDataFrame(_choose_rows(job, asked, shares))
    rest = 1 + max(wave for waves in shares.values() for wave in waves)
    rows = rows.join(F.broadcast(first), ["entity", "entity_id"], "left")
    return rows.withColumn("wave", F.coalesce("wave", F.lit(rest))), drafting


def _waves_by_pool(members: dict[str, int], waves: list[int]) -> dict[str, list[int]]:
    """Waves of the members that each pool gives, ascending, as in ``{"collaborative-0001": [1, 1, 2]}``."""
    left, found = dict(members), {}
    for wave, rows in enumerate(waves, start=1):
        for pool, count in kmeans.quotas(left, rows).items():
            found.setdefault(pool, []).extend([wave] * count)
            left[pool] -= count
    return found


def _choose_rows(job: Job, asked: DataFrame, shares: dict[tuple[str, str], list[int]]) -> pa.Table:
    """``_CHOSEN`` of the rows that are written before the rest."""
    giving = F.broadcast(job.spark.createDataFrame(list(shares), "entity string, pool string"))
    vectors = [read_parquet(job.spark, job.space.stage("embed") / f"entity={entity}").withColumn(
        "entity", F.lit(entity)) for entity in sorted({entity for entity, _ in shares})]
    known = reduce(DataFrame.unionByName, vectors)
    wanted = asked.select("entity", "entity_id", "pool", F.xxhash64("entity_id").alias("rank"))
    wanted = wanted.join(giving, ["entity", "pool"]).join(known, ["entity", "entity_id"], "left")

    def choose(key, table):
        return choose_representatives(table, shares[key[0].as_py(), key[1].as_py()])

    picked = wanted.groupBy("entity", "pool").applyInArrow(
        choose, "entity string, entity_id string, wave int").toArrow()
    return picked.sort_by([("entity", "ascending"), ("entity_id", "ascending")])


def choose_representatives(members: pa.Table, waves: list[int]) -> pa.Table:
    """``_CHOSEN`` of one pool's members (entity, entity_id, rank, vector), one for each entry of ``waves``.

    Those with a vector come first, the medoid and then the farthest from those before; then by ``rank``.
    """
    members = members.sort_by("entity_id")
    known = members.filter(pc.is_valid(members["vector"]))
    lists = known["vector"].combine_chunks()
    vectors = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1) if len(lists) else []
    names = known["entity_id"].to_pylist()
    ids = [names[place] for place in kmeans.farthest_points(vectors, len(waves))]
    others = members.filter(pc.is_null(members["vector"]))
    others = others.sort_by([("rank", "ascending"), ("entity_id", "ascending")])
    ids = (ids + others["entity_id"].to_pylist())[:len(waves)]
    return pa.table([members["entity"][:len(ids)].combine_chunks(), ids, waves[:len(ids)]], schema=_WAVE_ROWS)
