"""Rows of a CTR model: what users did after their old window, labelled, split into train, valid and test.

A text written from a user's old window (``history.window: old``) knows nothing that is not strictly earlier
than each of the user's rows here.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dare_job.data.paper.options import Options
from dare_job.data.paper.windows import fingerprint
from dare_job.errors import DataError

PARTS = ("train", "valid", "test")
_DIGITS = 13  # of a fingerprint: 52 bits, which a double holds


def rows(interactions: DataFrame, positive: float) -> DataFrame:
    """Columns of CTR, and ``tied``: as early as the last of the old window, so of no use without a leak."""
    end = F.max(F.when(F.col("old"), F.col("timestamp"))).over(Window.partitionBy("user_id"))
    return interactions.withColumn("end", end).where(~F.col("old")).select(
        "user_id", "item_id", (F.col("rating") >= positive).cast("tinyint").alias("label"), "rating",
        "timestamp", (F.col("timestamp") <= F.col("end")).alias("tied"))


def split(table: DataFrame, options: Options) -> tuple[DataFrame, dict]:
    """Add ``part``; also what the parts are bounded by.

    By time, rows of one second are in one part, so shares are met only nearly. By user, all rows of a user
    are in one part, drawn by seed.
    """
    train = 1 - options.valid_share - options.test_share
    if options.split == "user":
        place = _uniform("user_id", f"{options.seed} split")
        part, bounds = _part(place < train, place < train + options.valid_share), {}
    else:
        found = table.agg(_quantile(train).alias("train"), _quantile(1 - options.test_share).alias("valid"))
        bounds = {f"{name}_until": second for name, second in found.first().asDict().items()}
        time = F.col("timestamp")
        part = _part(time <= F.lit(bounds["train_until"]), time <= F.lit(bounds["valid_until"]))
    return table.withColumn("part", part), bounds


def require(counts: dict[str, dict], split: str) -> None:
    """Raise DataError where there is nothing to train on, or nothing to test on."""
    for part in ("train", "test"):
        if not counts[part]["rows"]:
            found = sum(counts[part]["rows"] for part in PARTS)
            raise DataError(f"the {part} part of the split by {split} has no rows, of {found} that are later "
                            "than a user's old window: choose other shares or another --split, or keep more "
                            "users and items (--min-user, --min-item)")


def _part(train: Column, valid: Column) -> Column:
    return F.when(train, F.lit(PARTS[0])).when(valid, F.lit(PARTS[1])).otherwise(F.lit(PARTS[2]))


def _quantile(share: float) -> Column:
    return F.expr(f"percentile_disc({share!r}D) WITHIN GROUP (ORDER BY `timestamp`)").cast("bigint")


def _uniform(key: str, purpose: str) -> Column:
    """A number of [0, 1) for each id."""
    digits = F.substring(fingerprint(key, purpose), 1, _DIGITS)
    return F.conv(digits, 16, 10).cast("double") / float(16 ** _DIGITS)
