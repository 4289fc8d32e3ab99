"""The windows of DARE, by hand and as a property, in Python and in Spark."""

from datetime import date, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from dare_job.config.settings import HistorySettings
from dare_job.data.history import end_of_day, select_window, user_histories, window_size
from dare_job.data.input import sample


@given(st.integers(3, 10_000), st.floats(0.5, 1, exclude_min=True, exclude_max=True))
def test_m_lies_between_half_and_all(n, share):
    assert n / 2 < window_size(n, share) < n


def test_small_n_keeps_everything():
    assert [window_size(n, 0.7) for n in range(6)] == [0, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(("name", "expected"), [
    # n = 10, share 0.7: m = 7; old is 0..6, new is 3..9; both are then cut to their last 4
    ("recent", [6, 7, 8, 9]), ("old", [3, 4, 5, 6]), ("new", [6, 7, 8, 9]),
])
def test_windows_by_hand(spark, name, expected):
    settings = HistorySettings(window=name, share=0.7, max_items=4)
    events = spark.range(1).select(F.array(*[F.lit(i) for i in range(10)]).alias("events"))
    assert events.select(select_window(F.col("events"), settings)).first()[0] == expected


@pytest.mark.parametrize("share", [0.51, 0.7, 0.99])
def test_spark_windows_equal_the_definition(spark, share):
    table = spark.range(0, 40).select(F.when(F.col("id") > 0, F.sequence(F.lit(1), F.col("id")))
                                      .otherwise(F.array().cast("array<bigint>")).alias("events"))
    settings = [HistorySettings(window=name, share=share, max_items=500) for name in ("old", "new", "recent")]
    chosen = [select_window(F.col("events"), setting).alias(setting.window) for setting in settings]
    for row in table.select("events", *chosen).collect():
        m = window_size(len(row["events"]), share)
        assert row["old"] == row["events"][:m]
        assert row["new"] == row["events"][len(row["events"]) - m:]
        assert row["recent"] == row["events"]


def test_history_is_sorted_titled_rated_and_without_copies(spark):
    events = [("u", "b", 5.0, 20), ("u", "a", 5.0, 20), ("u", "c", 4.0, 10), ("u", "c", 4.0, 10),
              ("u", "poor", 1.0, 30), ("u", "untitled", 5.0, 40), ("v", "poor", 1.0, 1)]
    table = spark.createDataFrame(events, "user_id string, item_id string, rating float, timestamp long")
    titled = spark.createDataFrame(pa.table({"item_id": ["a", "b", "c", "poor"]}))
    rows = user_histories(table, titled, HistorySettings(min_rating=3)).collect()
    found = {row["user_id"]: row for row in rows}
    assert [event["item_id"] for event in found["u"]["history"]] == ["c", "a", "b"]
    assert (found["u"]["interactions"], found["v"]["interactions"], found["v"]["history"]) == (6, 1, [])


def test_an_event_without_a_rating_is_no_low_rating(spark):
    events = [("u", "a", None, 1), ("u", "b", 2.0, 2), ("u", "c", 4.0, 3), ("v", "a", None, 1)]
    table = spark.createDataFrame(events, "user_id string, item_id string, rating float, timestamp long")
    titled = spark.createDataFrame(pa.table({"item_id": ["a", "b", "c"]}))
    found = user_histories(table, titled, HistorySettings(min_rating=3.5)).collect()
    kept = {row["user_id"]: [event["item_id"] for event in row["history"]] for row in found}
    assert kept == {"u": ["a", "c"], "v": ["a"]}


@pytest.mark.parametrize("window", ["recent", "old", "new"])
def test_repeated_items_stand_once_at_their_newest_time_with_and_without_spark(spark, window):
    """``max_items`` counts different items, and a rating too low to count hides no earlier one."""
    events = [("u", "a", 5.0, 10), ("u", "b", 4.0, 20), ("u", "a", 3.0, 30), ("u", "a", 3.0, 30),
              ("u", "c", None, 40), ("u", "c", 4.0, 40), ("u", "b", 1.0, 50), ("u", "d", 5.0, 25),
              ("u", "untitled", 5.0, 60), ("v", "a", 1.0, 1)]
    table = spark.createDataFrame(events, "user_id string, item_id string, rating float, timestamp long")
    titled = ["a", "b", "c", "d"]
    settings = HistorySettings(repeats="newest", min_rating=3, max_items=3, window=window, share=0.8)
    rows = user_histories(table, spark.createDataFrame(pa.table({"item_id": titled})), settings).collect()
    found = {row["user_id"]: row for row in rows}
    newest = [("b", 4.0), ("d", 5.0), ("a", 3.0), ("c", 4.0)]
    expected = newest[:3] if window == "old" else newest[1:]
    assert [tuple(event) for event in found["u"]["history"]] == expected
    assert (found["u"]["interactions"], found["v"]["interactions"], found["v"]["history"]) == (9, 1, [])
    for user in found:
        own = [(time, item, rating) for name, item, rating, time in events if name == user]
        history = [tuple(event) for event in found[user]["history"]]
        assert sample.history(own, set(titled), settings) == history


def test_a_day_ends_at_midnight_utc():
    assert end_of_day(date(1970, 1, 1)) == 86_400
    assert end_of_day(date(2024, 2, 28)) + 86_400 == end_of_day(date(2024, 2, 29))


@pytest.mark.parametrize(("zone", "day", "end"), [
    ("Europe/Berlin", "2026-01-02", "2026-01-02T23:00"),  # an hour before midnight UTC
    ("America/New_York", "2026-01-02", "2026-01-03T05:00"),
    ("Europe/Berlin", "2026-03-28", "2026-03-28T23:00"), ("Europe/Berlin", "2026-03-29", "2026-03-29T22:00"),
    ("America/Sao_Paulo", "2018-11-03", "2018-11-04T03:00"),  # clocks go from 00:00 to 01:00
    ("America/Sao_Paulo", "2018-02-17", "2018-02-18T03:00"),  # from 24:00 to 23:00
    ("America/St_Johns", "2010-11-06", "2010-11-07T03:30"),  # from 00:01 to 23:01: midnight comes twice
    ("Pacific/Apia", "2011-12-29", "2011-12-30T10:00"),  # the next date there was the 31st
    ("Pacific/Honolulu", "9999-12-30", "9999-12-31T10:00"),
])
def test_a_day_ends_at_midnight_of_its_zone(zone, day, end):
    expected = datetime.fromisoformat(f"{end}:00+00:00")
    assert end_of_day(date.fromisoformat(day), zone) == expected.timestamp()
