"""Selects the past interactions for a user's prompt, in Spark columns."""

import math
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dare_job.config.settings import HistorySettings
from dare_job.job import Job


def end_of_day(day: date, zone: str = "UTC") -> int:
    """First second (since 1970) after a date, as the clocks of a time zone show it (``input.day_boundary``).

    Where clocks are set forward at midnight, the day ends at that moment. Where they are set back over
    midnight, it ends at the second midnight.
    """
    midnight = datetime.combine(day + timedelta(days=1), time(), UTC if zone == "UTC" else ZoneInfo(zone))
    return int(max(midnight.replace(fold=fold).timestamp() for fold in (0, 1)))


def end_of_date(job: Job) -> int:
    """First second (since 1970) after the date of a run; interactions before it count."""
    return end_of_day(job.space.day, job.config.input.day_boundary)


def window_size(n: int, share: float) -> int:
    """Size m of the windows old (first m of n) and new (last m) of DARE: about ``share`` of n, n/2 < m < n.

    For n of 1 and 2 no such m exists, so m is n.
    """
    return n if n < 3 else min(max(math.floor(share * n), n // 2 + 1), n - 1)


def window_length(n: Column, share: float) -> Column:
    """``window_size`` of each row."""
    half = F.floor(n / 2).cast("int") + 1
    length = F.greatest(F.floor(F.lit(share) * n).cast("int"), half)
    return F.when(n < 3, n).otherwise(F.least(length, n - 1))


def user_histories(interactions: DataFrame, titled: DataFrame, settings: HistorySettings) -> DataFrame:
    """Interactions of each user, and the history for the prompt.

    A history contains only items of ``titled`` (item_id) and no ratings below ``min_rating``. Events without
    a rating stay. Duplicate interactions count once. With ``repeats`` "newest", only the newest interaction
    with each item stays.

    Returns
    -------
    user_id : string
    interactions : int
        Number of all.
    history : array of (item_id, rating)
        Those in the window, oldest first.
    times : array of int64
        Their times, in seconds since 1970.
    """
    table = interactions.join(titled.select("item_id", F.lit(True).alias("_titled")), "item_id", "left")
    usable = F.col("_titled")
    if settings.min_rating is not None:
        usable = usable & (F.col("rating").isNull() | (F.col("rating") >= settings.min_rating))
    event = F.when(usable, F.struct("timestamp", "item_id", "rating"))
    if settings.repeats == "newest":
        pairs = table.groupBy("user_id", "item_id").agg(F.count("*").alias("n"), F.max(event).alias("event"))
        counted, events = F.sum("n"), F.collect_list("event")
        collected = pairs.groupBy("user_id")
    else:
        counted, events = F.count("*"), F.collect_set(event)
        collected = table.groupBy("user_id")
    collected = collected.agg(counted.cast("int").alias("interactions"), F.sort_array(events).alias("events"))
    window = select_window(F.col("events"), settings)
    history = F.transform(window, lambda event: F.struct(event["item_id"], event["rating"]))
    return collected.select("user_id", "interactions", history.alias("history"),
                            window["timestamp"].alias("times"))


def select_window(events: Column, settings: HistorySettings) -> Column:
    """The last ``max_items`` events of the window ``settings.window``, from an array sorted by time."""
    n = F.size(events)
    window = n if settings.window == "recent" else window_length(n, settings.share)
    end = window if settings.window == "old" else n
    length = F.least(window, F.lit(settings.max_items))
    return F.slice(events, end - length + 1, length)
