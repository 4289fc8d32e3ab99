"""Amazon's ratings without the reviews' text, a csv for each category: four fields a line, in three orders.

| year | header | fields |
| --- | --- | --- |
| 2014 | no | user, item, rating, seconds |
| 2018 | no | item, user, rating, seconds |
| 2023 | user_id,parent_asin,rating,timestamp | user, item, rating, milliseconds |

The first two are told apart by the items, whose ids have ten characters.
"""

from pyspark.sql import DataFrame, SparkSession

from dare_job.data.readers.text import lines, split
from dare_job.errors import DataError
from dare_job.files import AnyPath

SUFFIXES = (".csv", ".csv.gz")
_HEADER = ["user_id", "parent_asin", "rating", "timestamp"]
_ITEM_CHARACTERS = 10


def read(file: AnyPath, start: bytes, spark: SparkSession) -> DataFrame:
    """source, line, raw, problem, user_id, item_id, rating, timestamp (text, as it is in the file).

    start  the file's first bytes
    Raises DataError where they do not tell which field is which.
    """
    rows = [line.split(",") for line in start.decode("utf-8", "replace").splitlines()]
    headed = bool(rows) and rows[0] == _HEADER
    order = ["user_id", "item_id"] if headed else _order(file, [row for row in rows if len(row) == 4])
    table = lines(spark, file)
    if headed:
        table = table.where("line > 1")
    return split(table, ",", [*order, "rating", "timestamp"])


def _order(file: AnyPath, rows: list[list[str]]) -> list[str]:
    """Names of the first two fields."""
    first, second = ([len(row[place]) == _ITEM_CHARACTERS for row in rows] for place in (0, 1))
    if sum(first) == sum(second):
        raise DataError(f"{file} is no csv of Amazon ratings (item,user,rating,seconds, or user first): "
                        f"of its first {len(rows)} lines with four fields as many have ten characters in the "
                        "first as in the second; give the reviews as JSON lines")
    return ["item_id", "user_id"] if sum(first) > sum(second) else ["user_id", "item_id"]
