"""What the reader of a format provides: batches of raw rows, which are checked as the run checks them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dare_job.data.readers.checks import LATEST_S
from dare_job.data.without_spark import values
from dare_job.schemas import INTERACTIONS


@dataclass(frozen=True)
class Entities:
    """Raw users or items.

    Attributes
    ----------
    ids : string (N,)
        Null for a row that could not be parsed.
    titles : string (N,)
        None for users.
    broken : bool (N,)
        Unusable rows.
    rows
        The N rows with all columns that ``attributes`` reads.
    attributes
        Attributes of a row of ``rows`` as a Python dictionary.
    """

    ids: pa.Array
    titles: pa.Array | None
    broken: pa.Array
    rows: pa.RecordBatch
    attributes: Callable[[dict], dict[str, str]]


@dataclass(frozen=True)
class InputTables:
    """Raw batches of one input; each function reads its files from the start.

    ``interactions``: batches with user_id and item_id as string, rating and timestamp of any type, and
    optionally ``broken`` (bool).
    """

    interactions: Callable[[], Iterator[pa.RecordBatch]]
    users: Callable[[], Iterator[Entities]] | None = None
    items: Callable[[], Iterator[Entities]] | None = None
    rating_range: tuple[float, float] = (float("-inf"), float("inf"))


def valid_interactions(raw: pa.RecordBatch, rating_range: tuple[float, float]) -> pa.RecordBatch:
    """The rows that ``readers.checks`` keeps, in the schema INTERACTIONS."""
    rating, seconds = values.doubles(raw["rating"]), values.whole_numbers(raw["timestamp"])
    low, high = rating_range
    fits = pc.and_(pc.is_finite(rating), pc.and_(pc.greater_equal(rating, low), pc.less_equal(rating, high)))
    checks = [values.present(raw["user_id"]), values.present(raw["item_id"]),
              pc.or_(pc.is_null(raw["rating"]), pc.fill_null(fits, False)),
              pc.fill_null(pc.and_(pc.greater_equal(seconds, 0), pc.less_equal(seconds, LATEST_S)), False)]
    if "broken" in raw.schema.names:
        checks.append(pc.invert(raw["broken"]))
    valid = checks[0]
    for check in checks[1:]:
        valid = pc.and_(valid, check)
    kept = pa.RecordBatch.from_arrays([raw["user_id"], raw["item_id"], rating, seconds],
                                      names=INTERACTIONS.names).filter(valid)
    columns = [*kept.columns[:2], kept["rating"].cast(pa.float32(), safe=False), kept["timestamp"]]
    return pa.RecordBatch.from_arrays([*columns[:3], columns[3].cast(pa.int64())], schema=INTERACTIONS)
