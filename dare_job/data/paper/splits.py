"""Rows of a CTR model: what users did after their old window, labelled, split into train, valid and test.

A text written from a user's old window (``history.window: old``) knows nothing that is not strictly earlier
than each of the user's rows here.

Which interactions stay: rated, of items with a title, one of each pair, and the k-core of what is left.

Old and new: the two windows of each user's history, the two halves of the items, and the test samples.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F

from dare_job.data.history import window_length
from dare_job.data.paper.options import Options
from dare_job.errors import DataError

Save = Callable[[DataFrame], DataFrame]  # writes a table and reads it back, so that it is computed once


def usable_interactions(interactions: DataFrame, items: DataFrame, options: Options, save: Save
           ) -> tuple[DataFrame, dict[str, int]]:
    """Interactions with a rating and, as the options say, with a titled item and once a pair.

    Returns them, and how many rows went for which reason: unrated, untitled, repeated.
    """
    titled = items.where(F.trim("title") != "").select("item_id", F.lit(True).alias("_titled"))
    marked = interactions.join(titled, "item_id", "left")
    rated = F.col("rating").isNotNull()
    unwanted = F.col("_titled").isNull() & F.lit(options.untitled == "drop")
    seen = Observation("usable")
    observed = marked.observe(seen, F.count_if(~rated).alias("unrated"),
                              F.count_if(rated & unwanted).alias("untitled"),
                              F.count_if(rated & ~unwanted).alias("left"))
    kept = observed.where(rated & ~unwanted).select("user_id", "item_id", "rating", "timestamp")
    if options.duplicates == "last":
        newest = F.max(F.struct("timestamp", "rating")).alias("newest")
        kept = kept.groupBy("user_id", "item_id").agg(newest).select(
            "user_id", "item_id", "newest.rating", "newest.timestamp")
    kept = save(kept)
    counts = seen.get
    return kept, {"unrated": counts["unrated"], "untitled": counts["untitled"],
                  "repeated": counts["left"] - kept.count()}


def k_core(table: DataFrame, min_user: int, min_item: int, save: Save) -> tuple[DataFrame, list[int]]:
    """The largest part in which every user has ``min_user`` rows and every item ``min_item``.

    Returns it, and the rows left after each round; in the last round none went. The order in which users and
    items are taken away makes no difference to what is left.
    """
    limits = [(key, least) for key, least in (("user_id", min_user), ("item_id", min_item)) if least > 1]
    rows, rounds = table.count(), []
    while limits:
        kept = table
        for key, least in limits:
            enough = table.groupBy(key).agg(F.count("*").alias("rows")).where(F.col("rows") >= least)
            kept = kept.join(enough.select(key), key, "left_semi")
        table = save(kept.select(*table.columns))
        rounds.append(table.count())
        if rounds[-1] in (rows, 0):
            break
        rows = rounds[-1]
    return table, rounds


def add_windows(table: DataFrame, share: float) -> DataFrame:
    """Add place (1 to n in the user's history), old (the first m) and new (the last m), n/2 < m < n.

    The order is the job's own (``data/history.py``): by time, and within a second by item.
    """
    of_user = Window.partitionBy("user_id")
    n = F.count("*").over(of_user).cast("int")
    ordered = table.withColumns({
        "place": F.row_number().over(of_user.orderBy("timestamp", "item_id", "rating")), "n": n})
    m = window_length(F.col("n"), share)
    return ordered.select(*table.columns, "place", (F.col("place") <= m).alias("old"),
                          (F.col("place") > F.col("n") - m).alias("new"))


def user_table(interactions: DataFrame, known: DataFrame, sample: int, seed: int) -> DataFrame:
    """One row a user; ``sample`` of those that have two different windows are test users."""
    counted = interactions.groupBy("user_id").agg(
        F.count("*").cast("int").alias("interactions"), F.count_if("old").cast("int").alias("window"))
    able = counted.where(F.col("window") < F.col("interactions"))
    described = counted.join(known.select("user_id", "attributes"), "user_id", "left")
    return flag_ids(described, "user_id", sample_ids(able, "user_id", sample, f"{seed} test users"), "test")


def item_table(interactions: DataFrame, known: DataFrame, sample: int, seed: int) -> DataFrame:
    """One row an item; a random half exists, and ``sample`` of the others are test items."""
    found = interactions.select("item_id").distinct()
    half = (found.count() + 1) // 2
    described = found.join(known.select("item_id", "title", "attributes"), "item_id", "left")
    halved = flag_ids(described, "item_id", sample_ids(found, "item_id", half, f"{seed} items"), "existing")
    test = sample_ids(halved.where(~F.col("existing")), "item_id", sample, f"{seed} test items")
    return flag_ids(halved, "item_id", test, "test")


def sample_ids(table: DataFrame, key: str, count: int, purpose: str) -> DataFrame:
    """Ids of ``count`` of the rows: those whose SHA-256, with the purpose before the id, is smallest."""
    return table.orderBy(hash_column(key, purpose), key).limit(count).select(key)


def hash_column(key: str, purpose: str) -> Column:
    """64 hex digits that look random and are the same wherever they are computed."""
    return F.sha2(F.concat(F.lit(f"{purpose} "), F.col(key)), 256)


def flag_ids(table: DataFrame, key: str, ids: DataFrame, name: str) -> DataFrame:
    """Add a column: whether the row's id is among the ids."""
    marked = table.join(ids.select(key, F.lit(True).alias(name)), key, "left")
    return marked.withColumn(name, F.coalesce(name, F.lit(False)))

PARTS = ("train", "valid", "test")

_DIGITS = 13  # of a fingerprint: 52 bits, which a double holds


def ctr_rows(interactions: DataFrame, positive: float) -> DataFrame:
    """Columns of CTR, and ``tied``: as early as the last of the old window, so of no use without a leak."""
    end = F.max(F.when(F.col("old"), F.col("timestamp"))).over(Window.partitionBy("user_id"))
    return interactions.withColumn("end", end).where(~F.col("old")).select(
        "user_id", "item_id", (F.col("rating") >= positive).cast("tinyint").alias("label"), "rating",
        "timestamp", (F.col("timestamp") <= F.col("end")).alias("tied"))


def assign_parts(table: DataFrame, options: Options) -> tuple[DataFrame, dict]:
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


def require_parts(counts: dict[str, dict], split: str) -> None:
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
    digits = F.substring(hash_column(key, purpose), 1, _DIGITS)
    return F.conv(digits, 16, 10).cast("double") / float(16 ** _DIGITS)
