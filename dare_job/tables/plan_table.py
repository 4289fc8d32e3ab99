"""Reads the plan of a run, and which of its rows are written, copies of another row's text, or carried over.

The choice is in the stage's record: rows from the rank ``cut`` on are carried over, and those whose rank lies
in ``skipped``. Copies are in a table of their own. So the plan, with its prompts, is written only once.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dare_job.job import Job
from dare_job.schemas import COPIES, PLAN
from dare_job.spark.tables import read_parquet
from dare_job.storage.paths import AnyPath
from dare_job.tables import published, stage_inputs

BUDGET = "budget"  # the reason of rows from the cut on
CURRENT = -1  # ``written_rank`` of a copy of a text that is there already


def read(job: Job, entity: str) -> DataFrame:
    """PLAN of an entity type with ``text_of``, and ``carried_reason`` with the reason BUDGET."""
    copies = copies_folder(job.space.stage("plan"), entity)
    copies = read_parquet(job.spark, copies) if published.dataset(copies, COPIES).count_rows() else None
    return decided(stage_inputs.stage_table(job, "plan", entity), copies, *_choice(job))


def decided(rows: DataFrame, copies: DataFrame | None, cut: int | None,
            skipped: list[int] | None) -> DataFrame:
    """Add ``text_of`` and the reason BUDGET to rows of PLAN (entity_id, rank, carried_reason and others).

    Parameters
    ----------
    copies
        COPIES of the same entity type; None: there are none.
    cut, skipped
        Rows from the rank ``cut`` on are not written, nor those from the first to before the second rank of
        ``skipped``; None: there are none. A copy costs nothing: what holds it back does not count.
    """
    is_late = late(cut, skipped)
    if copies is None:
        rows = rows.withColumns({name: F.lit(None).cast(kind) for name, kind in (
            ("text_of", "string"), ("written_rank", "long"))})
    else:
        rows = rows.join(copies.select("entity_id", "text_of", "written_rank"), "entity_id", "left")
    waits = is_late(F.coalesce("written_rank", "rank"))  # a copy waits for the row that has the text
    rows = rows.withColumn("text_of", F.when(~waits, F.col("text_of")))
    return rows.withColumn("carried_reason", F.when(F.col("text_of").isNull(), F.coalesce(
        "carried_reason", F.when(waits, BUDGET)))).drop("written_rank")


def own_texts(rows: DataFrame) -> DataFrame:
    """Rows of ``read`` that need a text of their own in this run: stale, not carried over, no copies."""
    return rows.where(F.col("stale") & F.col("carried_reason").isNull() & F.col("text_of").isNull())


def rows_to_generate(job: Job, entity: str, limit: int | None = None) -> pa.Table:
    """The first ``limit`` rows of ``own_texts`` with a prompt, sorted by entity_id (PLAN), without Spark.

    Rows with ``error`` are not included: they need no model and are always written.
    """
    (cut, skipped), folder = _choice(job), copies_folder(job.space.stage("plan"), entity)
    wanted = pc.field("stale") & pc.field("carried_reason").is_null() & pc.field("prompt").is_valid()
    if cut is not None:
        wanted &= pc.field("rank") < cut
    if skipped is not None:
        wanted &= (pc.field("rank") < skipped[0]) | (pc.field("rank") >= skipped[1])
    rows = _dataset(job, entity).to_table(filter=wanted)
    copies = published.dataset(folder, COPIES).to_table(columns=["entity_id"])["entity_id"]
    rows = rows.filter(pc.invert(pc.is_in(rows["entity_id"], value_set=copies.combine_chunks())))
    rows = rows.sort_by("entity_id")
    return rows if limit is None else rows.slice(0, limit)


def current_texts_shared(job: Job, entity: str) -> pa.Array:
    """Ids (string) of the rows, not stale, whose published text other rows get in this run."""
    copies = published.dataset(copies_folder(job.space.stage("plan"), entity), COPIES)
    return copies.to_table(columns=["text_of"], filter=pc.field("written_rank") == CURRENT)["text_of"]


def row_count(job: Job, entity: str) -> int:
    return _dataset(job, entity).count_rows()


def copies_folder(folder: AnyPath, entity: str) -> AnyPath:
    """Folder of COPIES in the folder of a plan."""
    return folder / "copies" / f"entity={entity}"


def _dataset(job: Job, entity: str) -> ds.Dataset:
    return published.dataset(stage_inputs.stage_folder(job, "plan", entity), PLAN)


def _choice(job: Job) -> tuple[int | None, list[int] | None]:
    record = stage_inputs.require_stage(job, "plan")["refresh"]
    return record["cut"], record.get("skipped")


def late(cut: int | None, skipped: list[int] | None) -> Callable[[Column], Column]:
    """Whether ranks, a column, are not written because of ``cut`` and ``skipped`` (``decided``)."""
    def is_late(rank: Column) -> Column:
        after = F.lit(False) if cut is None else rank >= cut
        return after if skipped is None else after | rank.between(skipped[0], skipped[1] - 1)

    return is_late
