"""Which interactions stay: rated, of items with a title, one of each pair, and the k-core of what is left."""

from collections.abc import Callable

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from dare_job.data.paper.options import Options

Save = Callable[[DataFrame], DataFrame]  # writes a table and reads it back, so that it is computed once


def usable(interactions: DataFrame, items: DataFrame, options: Options, save: Save
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
