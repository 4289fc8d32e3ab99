"""Old and new: the two windows of each user's history, the two halves of the items, and the test samples."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dare_job.data.history import window_length


def placed(table: DataFrame, share: float) -> DataFrame:
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


def users(interactions: DataFrame, known: DataFrame, sample: int, seed: int) -> DataFrame:
    """One row a user; ``sample`` of those that have two different windows are test users."""
    counted = interactions.groupBy("user_id").agg(
        F.count("*").cast("int").alias("interactions"), F.count_if("old").cast("int").alias("window"))
    able = counted.where(F.col("window") < F.col("interactions"))
    described = counted.join(known.select("user_id", "attributes"), "user_id", "left")
    return flagged(described, "user_id", drawn(able, "user_id", sample, f"{seed} test users"), "test")


def items(interactions: DataFrame, known: DataFrame, sample: int, seed: int) -> DataFrame:
    """One row an item; a random half exists, and ``sample`` of the others are test items."""
    found = interactions.select("item_id").distinct()
    half = (found.count() + 1) // 2
    described = found.join(known.select("item_id", "title", "attributes"), "item_id", "left")
    halved = flagged(described, "item_id", drawn(found, "item_id", half, f"{seed} items"), "existing")
    test = drawn(halved.where(~F.col("existing")), "item_id", sample, f"{seed} test items")
    return flagged(halved, "item_id", test, "test")


def drawn(table: DataFrame, key: str, count: int, purpose: str) -> DataFrame:
    """Ids of ``count`` of the rows: those whose SHA-256, with the purpose before the id, is smallest."""
    return table.orderBy(fingerprint(key, purpose), key).limit(count).select(key)


def fingerprint(key: str, purpose: str) -> Column:
    """64 hex digits that look random and are the same wherever they are computed."""
    return F.sha2(F.concat(F.lit(f"{purpose} "), F.col(key)), 256)


def flagged(table: DataFrame, key: str, ids: DataFrame, name: str) -> DataFrame:
    """Add a column: whether the row's id is among the ids."""
    marked = table.join(ids.select(key, F.lit(True).alias(name)), key, "left")
    return marked.withColumn(name, F.coalesce(name, F.lit(False)))
