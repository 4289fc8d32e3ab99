"""No text may have been written from what it is used to predict.

A user's text of date g is written from interactions up to the end of day g (UTC). A label row of second s may
use it where g has ended by then: end_of_day(g) <= s. An item's text is written from its title and attributes
alone, which know no label, so its date is no leak.
"""

from datetime import UTC, date, datetime

import numpy as np

from dare_job.ctr.examples import Examples
from dare_job.ctr.knowledge import Knowledge
from dare_job.data.history import end_of_day
from dare_job.errors import DataError

_NAMED = 3


def first_safe_second(tables: list[Knowledge]) -> int | None:
    """First second that all users' texts may be used for; None where there are none of users."""
    bounds = [int(table.usable_from.max()) for table in tables
              if table.entity == "user" and len(table.usable_from)]
    return max(bounds, default=None)


def refuse(name: str, table: Knowledge, examples: Examples, text: np.ndarray) -> None:
    """Raise DataError where a label row would use a text from a history that may hold its label.

    text  (N,) row of ``table`` that each label row uses, -1: none
    """
    if table.entity != "user" or not len(table.usable_from):
        return
    used = text >= 0
    late = used & (table.usable_from[text] > examples.second)
    if not late.any():
        return
    rows = np.flatnonzero(late)
    named = [f"{table.ids[text[row]]} (written {_day(table.usable_from[text[row]] - 1)}, label of "
             f"{_day(examples.second[row])})" for row in rows[:_NAMED]]
    safe = _day(int(table.usable_from.max()))
    raise DataError(
        f"--knowledge {name}: {len(rows)} of {int(used.sum())} label rows would use a user's text that was "
        f"written from a history up to their own day or later, so it may tell the label: {', '.join(named)}"
        f"{' ...' if len(rows) > _NAMED else ''}. Use text of an earlier date (--date), or labels from "
        f"{safe} on (--labels-from {safe})")


def first_second(day: date) -> int:
    """First second (UTC, since 1970) of a day."""
    return end_of_day(day) - 86_400


def _day(second: int) -> str:
    return datetime.fromtimestamp(int(second), UTC).date().isoformat()
