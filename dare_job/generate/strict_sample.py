"""Which rows a run with lossy verification also writes strictly, to measure its loss: a seeded sample.

The sample is a wave of its own, so that the waves after it can be written strictly if the loss is too large.
It represents itself and these, not the waves before it, which have fewer drafts.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job.config.settings import JobConfig
from dare_job.job import Job

FOLDER = "strict"  # of the strict texts, in the folder of the stage generate
# auto: a twentieth of the rows, from 500 to 2,000, but at most a quarter of the rows
_SHARE, _MIN_ROWS, _MAX_ROWS, _MAX_SHARE = 20, 500, 2000, 4


def settings(config: JobConfig) -> list:
    """What the choice of the sample depends on; empty if there is none."""
    if not (config.verify.sample and config.decode.mode == "dare") or config.verify.is_strict:
        return []
    return ["sample", config.verify.sample, config.seed]


def size(requested: int | str, rows: int) -> int:
    """Number of rows to sample of ``rows``; ``requested`` is the setting ``verify.sample``."""
    if requested == "auto":
        return min(max(rows // _SHARE, _MIN_ROWS), _MAX_ROWS, rows // _MAX_SHARE)
    return min(requested, rows // 2)


def split_wave(job: Job, rows: DataFrame, wave: int) -> tuple[DataFrame, int]:
    """Leave a sample of the rows of a wave in it, and move the others to the next.

    Returns the rows, and the wave of the sample; 0: there is none.
    """
    if not settings(job.config):
        return rows, 0
    can_be_lossy = F.col("prompt").isNotNull() & F.col("error").isNull() & ~F.col("strict")
    inside = rows.where((F.col("wave") == wave) & can_be_lossy).select("entity", "entity_id")
    count = size(job.config.verify.sample, inside.count())
    if not count:
        return rows, 0
    order = F.xxhash64(F.lit(job.config.seed), "entity", "entity_id")
    chosen = inside.orderBy(order, "entity", "entity_id").limit(count).withColumn("in_sample", F.lit(True))
    rows = rows.join(F.broadcast(chosen), ["entity", "entity_id"], "left")
    is_other = (F.col("wave") == wave) & F.col("in_sample").isNull()
    rows = rows.withColumn("wave", F.when(is_other, wave + 1).otherwise(F.col("wave")))
    return rows.drop("in_sample"), wave
