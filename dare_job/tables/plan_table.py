"""Reads the plan of a run, and which of its rows are written, copies of another row's text, or carried over.

The choice is in the stage's record: rows of the seeded sample below ``sample_end`` are written, and others up
to the rank ``cut``. Copies are in a table of their own. So the plan, with its prompts, is written only once.
"""

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
HELD = 2**62  # plus the key of the sample: ``written_rank`` of a copy of a row that only the sample can write


def read(job: Job, entity: str) -> DataFrame:
    """PLAN of an entity type with ``text_of``, ``sampled``, and ``carried_reason`` with the reason BUDGET."""
    copies = copies_folder(job.space.stage("plan"), entity)
    copies = read_parquet(job.spark, copies) if published.dataset(copies, COPIES).count_rows() else None
    return decided(stage_inputs.stage_table(job, "plan", entity), copies, *_choice(job))


def decided(rows: DataFrame, copies: DataFrame | None, cut: int | None, sample_end: int | None) -> DataFrame:
    """Add ``text_of``, ``sampled`` and the reason BUDGET to rows.

    Parameters
    ----------
    rows
        entity_id, rank, sample and carried_reason of PLAN, and any other columns.
    copies
        COPIES of the same entity type; None: there are none.
    cut
        Rows from this rank on are not written, but for the sample; None: all are.
    sample_end
        Rows of the sample below this key are written, whatever their rank and ``carried_reason``; None: no
        row is. A copy costs nothing: what holds it back does not count.
    """
    if copies is None:
        rows = rows.withColumns({name: F.lit(None).cast(kind) for name, kind in (
            ("text_of", "string"), ("written_rank", "long"), ("written_sample", "int"))})
    else:
        rows = rows.join(copies.select(*COPIES.names), "entity_id", "left")
    alone = F.col("written_rank").isNull()
    sampled, cut = alone & is_sampled(F.col("sample"), sample_end), HELD if cut is None else cut
    # a copy waits for the row that has the text
    late = F.when(alone, F.coalesce(F.col("rank") >= cut, F.lit(False)) & ~sampled).otherwise(
        (F.col("written_rank") >= cut) & ~is_sampled(F.col("written_sample"), sample_end))
    rows = rows.withColumns({"text_of": F.when(~late, F.col("text_of")), "late": late, "sampled": sampled})
    held = F.coalesce(F.when(~F.col("sampled"), F.col("carried_reason")), F.when(F.col("late"), BUDGET))
    return rows.withColumn("carried_reason", F.when(F.col("text_of").isNull(), held)).drop(
        "late", "written_rank", "written_sample")


def is_sampled(key: Column, sample_end: int | None) -> Column:
    """Whether a row is written as one of the seeded sample (``decided``)."""
    return F.lit(False) if sample_end is None else F.coalesce(key < sample_end, F.lit(False))


def own_texts(rows: DataFrame) -> DataFrame:
    """Rows of ``read`` that need a text of their own in this run: stale, not carried over, no copies."""
    return rows.where(F.col("stale") & F.col("carried_reason").isNull() & F.col("text_of").isNull())


def rows_to_generate(job: Job, entity: str, limit: int | None = None) -> pa.Table:
    """The first ``limit`` rows of ``own_texts`` with a prompt, sorted by entity_id (PLAN), without Spark.

    Rows with ``error`` are not included: they need no model.
    """
    (cut, sample_end), folder = _choice(job), copies_folder(job.space.stage("plan"), entity)
    wanted = pc.field("carried_reason").is_null()
    if cut is not None:
        wanted &= pc.field("rank") < cut
    if sample_end is not None:
        wanted |= pc.field("sample") < sample_end
    wanted &= pc.field("stale") & pc.field("prompt").is_valid()
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


def _choice(job: Job) -> tuple[int | None, int | None]:
    record = stage_inputs.require_stage(job, "plan")["refresh"]
    return record["cut"], record["sample_end"]
