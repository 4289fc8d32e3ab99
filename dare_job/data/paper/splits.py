"""Filters, windows, samples and CTR rows of a prepared data set.

Filters keep rated interactions of items with a title, one per pair, and then the k-core. CTR rows are the
labelled interactions after a user's old window, split into train, valid and test. A text from the old window
(``history.window: old``) uses only interactions strictly before each of the user's CTR rows.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F

from dare_job.data.history import window_length
from dare_job.data.paper import Options
from dare_job.errors import DataError

PARTS = ("train", "valid", "test")
_DIGITS = 13  # hex digits of a hash: 52 bits fit into a double
Save = Callable[[DataFrame], DataFrame]  # writes a table and reads it back, so that it is computed once


def usable_interactions(interactions: DataFrame, items: DataFrame, options: Options, save: Save
           ) -> tuple[DataFrame, dict[str, int]]:
    """Keep interactions with a rating and, depending on the options, a titled item and one row per pair.

    Returns
    -------
    kept : DataFrame
    dropped : dict
        Number of dropped rows by reason: unrated, untitled, repeated.
    """
    titled = items.where(F.trim("title") != "").select("item_id", F.lit(True).alias("_titled"))
    table = interactions.join(titled, "item_id", "left")
    rated = F.col("rating").isNotNull()
    unwanted = F.col("_titled").isNull() & F.lit(options.untitled == "drop")
    observation = Observation("usable")
    observed = table.observe(observation, F.count_if(~rated).alias("unrated"),
                              F.count_if(rated & unwanted).alias("untitled"),
                              F.count_if(rated & ~unwanted).alias("left"))
    kept = observed.where(rated & ~unwanted).select("user_id", "item_id", "rating", "timestamp")
    if options.duplicates == "last":
        newest = F.max(F.struct("timestamp", "rating")).alias("newest")
        kept = kept.groupBy("user_id", "item_id").agg(newest).select(
            "user_id", "item_id", "newest.rating", "newest.timestamp")
    kept = save(kept)
    counts = observation.get
    return kept, {"unrated": counts["unrated"], "untitled": counts["untitled"],
                  "repeated": counts["left"] - kept.count()}


def k_core(table: DataFrame, min_user: int, min_item: int, save: Save) -> tuple[DataFrame, list[int]]:
    """The largest subset in which every user has ``min_user`` rows and every item ``min_item``.

    The result does not depend on the order in which users and items are removed.

    Returns
    -------
    subset : DataFrame
    rounds : list of int
        Number of rows after each round; the last round removes none.
    """
    limits = [(key, limit) for key, limit in (("user_id", min_user), ("item_id", min_item)) if limit > 1]
    rows, rounds = table.count(), []
    while limits:
        kept = table
        for key, limit in limits:
            enough = table.groupBy(key).agg(F.count("*").alias("rows")).where(F.col("rows") >= limit)
            kept = kept.join(enough.select(key), key, "left_semi")
        table = save(kept.select(*table.columns))
        rounds.append(table.count())
        if rounds[-1] in (rows, 0):
            break
        rows = rounds[-1]
    return table, rounds


def add_windows(table: DataFrame, share: float) -> DataFrame:
    """Add columns place (1 to n in the user's history), old (first m) and new (last m), with n/2 < m < n.

    Sorts by time and within a second by item, like ``data/history.py``.
    """
    of_user = Window.partitionBy("user_id")
    n = F.count("*").over(of_user).cast("int")
    ordered = table.withColumns({
        "place": F.row_number().over(of_user.orderBy("timestamp", "item_id", "rating")), "n": n})
    m = window_length(F.col("n"), share)
    return ordered.select(*table.columns, "place", (F.col("place") <= m).alias("old"),
                          (F.col("place") > F.col("n") - m).alias("new"))


def user_table(interactions: DataFrame, users: DataFrame, sample: int, seed: int) -> DataFrame:
    """One row per user. ``sample`` of the users with two different windows are test users."""
    counts = interactions.groupBy("user_id").agg(
        F.count("*").cast("int").alias("interactions"), F.count_if("old").cast("int").alias("window"))
    candidates = counts.where(F.col("window") < F.col("interactions"))
    described = counts.join(users.select("user_id", "attributes"), "user_id", "left")
    test = sample_ids(candidates, "user_id", sample, f"{seed} test users")
    return flag_ids(described, "user_id", test, "test")


def item_table(interactions: DataFrame, items: DataFrame, sample: int, seed: int) -> DataFrame:
    """One row per item. A random half is existing, and ``sample`` of the others are test items."""
    ids = interactions.select("item_id").distinct()
    half = (ids.count() + 1) // 2
    described = ids.join(items.select("item_id", "title", "attributes"), "item_id", "left")
    halved = flag_ids(described, "item_id", sample_ids(ids, "item_id", half, f"{seed} items"), "existing")
    test = sample_ids(halved.where(~F.col("existing")), "item_id", sample, f"{seed} test items")
    return flag_ids(halved, "item_id", test, "test")


def sample_ids(table: DataFrame, key: str, count: int, purpose: str) -> DataFrame:
    """Ids of ``count`` rows: those with the smallest SHA-256 of ``purpose`` and id."""
    return table.orderBy(hash_column(key, purpose), key).limit(count).select(key)


def hash_column(key: str, purpose: str) -> Column:
    """SHA-256 of ``purpose`` and the key, as 64 hex digits: a reproducible random order."""
    return F.sha2(F.concat(F.lit(f"{purpose} "), F.col(key)), 256)


def flag_ids(table: DataFrame, key: str, ids: DataFrame, name: str) -> DataFrame:
    """Add a boolean column: whether ``ids`` contains the row's id."""
    joined = table.join(ids.select(key, F.lit(True).alias(name)), key, "left")
    return joined.withColumn(name, F.coalesce(name, F.lit(False)))


def ctr_rows(interactions: DataFrame, positive: float) -> DataFrame:
    """Columns of CTR, and ``tied``: not later than the end of the old window, so using the row would leak."""
    end = F.max(F.when(F.col("old"), F.col("timestamp"))).over(Window.partitionBy("user_id"))
    return interactions.withColumn("end", end).where(~F.col("old")).select(
        "user_id", "item_id", (F.col("rating") >= positive).cast("tinyint").alias("label"), "rating",
        "timestamp", (F.col("timestamp") <= F.col("end")).alias("tied"))


def assign_parts(table: DataFrame, options: Options) -> tuple[DataFrame, dict]:
    """Add column ``part``; also returns the last timestamps of the parts.

    Split by time, rows of the same second are in the same part, so shares are approximate. Split by user, all
    rows of a user are in the same part, which the seed determines.
    """
    train = 1 - options.valid_share - options.test_share
    if options.split == "user":
        place = _uniform("user_id", f"{options.seed} split")
        part, bounds = _part(place < train, place < train + options.valid_share), {}
    else:
        last = table.agg(_quantile(train).alias("train"), _quantile(1 - options.test_share).alias("valid"))
        bounds = {f"{name}_until": second for name, second in last.first().asDict().items()}
        time = F.col("timestamp")
        part = _part(time <= F.lit(bounds["train_until"]), time <= F.lit(bounds["valid_until"]))
    return table.withColumn("part", part), bounds


def require_parts(counts: dict[str, dict], split: str) -> None:
    """Check that the train and test parts have rows.

    Raises
    ------
    DataError
        A part is empty.
    """
    for part in ("train", "test"):
        if not counts[part]["rows"]:
            rows = sum(counts[part]["rows"] for part in PARTS)
            raise DataError(f"the {part} part of the split by {split} is empty; {rows} rows are later than a "
                            "user's old window: choose other shares or another --split, or keep more "
                            "users and items (--min-user, --min-item)")


def _part(train: Column, valid: Column) -> Column:
    return F.when(train, F.lit(PARTS[0])).when(valid, F.lit(PARTS[1])).otherwise(F.lit(PARTS[2]))


def _quantile(share: float) -> Column:
    return F.expr(f"percentile_disc({share!r}D) WITHIN GROUP (ORDER BY `timestamp`)").cast("bigint")


def _uniform(key: str, purpose: str) -> Column:
    """A uniform number in [0, 1) for each id."""
    digits = F.substring(hash_column(key, purpose), 1, _DIGITS)
    return F.conv(digits, 16, 10).cast("double") / float(16 ** _DIGITS)
