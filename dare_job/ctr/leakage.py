"""No text may have been written from what it is used to predict.

A user's text of date g is written from interactions up to the end of day g (UTC): a label of second s may use
it where g has ended by then, end_of_day(g) <= s. Where the prompt is proved (``histories``), a label may use
it from the second after the prompt's last interaction on, unless tokens were relaxed for drafts of older text
(``origin.drafted``). An item's text is written from its title and attributes alone, which know no label, so
its date is no leak.
"""

import logging
import tempfile
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.ctr import histories
from dare_job.ctr.examples import Examples
from dare_job.ctr.knowledge import Knowledge
from dare_job.ctr.source import Source
from dare_job.data.history import end_of_day
from dare_job.errors import DataError
from dare_job.tables import ITEMS

_LOG = logging.getLogger("dare_job")
_NAMED = 3


def bounded(table: Knowledge, source: Source) -> Knowledge:
    """The texts with ``usable_from`` of users whose prompt is proved and tells all; others as they are."""
    if table.entity != "user" or not table.settings:
        return table
    texts = {user: (table.prompts[user], int(end)) for user, end in
             zip(table.ids, table.usable_from, strict=True)
             if user in table.prompts and user not in table.drafted}
    with tempfile.TemporaryDirectory() as folder:
        items = str(Path(folder) / "items.parquet")
        pq.write_table(pa.Table.from_pandas(source.items, ITEMS, preserve_index=False), items)
        proved = histories.ends(source, items, table.settings, texts)
    _LOG.info("%d of %d users' prompts are proved by the data", len(proved), len(table.ids))
    _tell_of_drafted(table)
    bounds = [proved.get(user, end) for user, end in zip(table.ids, table.usable_from, strict=True)]
    return replace(table, usable_from=np.array(bounds, np.int64))


def _tell_of_drafted(table: Knowledge) -> None:
    count = sum(user in table.drafted for user in table.ids)
    if not count:
        return
    level, more = logging.INFO, ""
    if _cut_by_user(table):
        level, more = logging.WARNING, "; in every set their labels begin behind it, so others are compared"
    _LOG.log(level, "%d users' texts have relaxed tokens and were drafted from older text: they count by "
             "their date%s", count, more)


def _cut_by_user(table: Knowledge) -> bool:
    return table.settings.get("history", {}).get("window") == "old"


def first_labels(tables: list[Knowledge]) -> int | pd.Series | None:
    """From which second on there may be labels: for all users, or by user where histories were cut by user.

    None where there are no users' texts. Cut by user: history.window was ``old``.
    """
    users = [table for table in tables if table.entity == "user" and len(table.ids)]
    if not users:
        return None
    if all(map(_cut_by_user, users)):
        bounds = pd.concat([pd.Series(table.usable_from, table.ids) for table in users])
        return bounds.groupby(level=0).max()
    return max(int(table.usable_from.max()) for table in users)


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
    named = [f"{table.ids[text[row]]} (written from what was before "
             f"{_time(table.usable_from[text[row]])}, label of {_time(examples.second[row])})"
             for row in rows[:_NAMED]]
    safe = datetime.fromtimestamp(int(table.usable_from[text[late]].max()) + 86_399, UTC).date()
    raise DataError(
        f"--knowledge {name}: {len(rows)} of {int(used.sum())} label rows would use a user's text that may "
        f"tell the label, as it was written from a later history: {', '.join(named)}"
        f"{' ...' if len(rows) > _NAMED else ''}. Use text of an earlier date (--date), or labels from "
        f"{safe} on (--labels-from {safe})")


def first_second(day: date) -> int:
    """First second (UTC, since 1970) of a day."""
    return end_of_day(day) - 86_400


def _time(second: int) -> str:
    return datetime.fromtimestamp(int(second), UTC).strftime("%Y-%m-%d %H:%M:%S")
