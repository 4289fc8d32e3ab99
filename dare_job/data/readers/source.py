"""What a reader hands over: three raw tables, not yet checked."""

from dataclasses import dataclass

from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Source:
    """Raw tables of one input. Each has its contract columns, as text where the file has text, and

    ``source`` (file name), ``line`` (1-based), ``raw`` (the row as text) and ``problem`` (null, or why the
    row could not be taken apart).
    """

    interactions: DataFrame
    users: DataFrame | None = None
    items: DataFrame | None = None
    rating_range: tuple[float, float] | None = None  # None: any finite number
