"""No text may have been written from what it is used to predict.

A user's text of date g is written from interactions up to the end of day g (UTC): a label of second s may use
it where g has ended by then, end_of_day(g) <= s. Where the prompt is proved (``histories``), a label may use
it from the second after the prompt's last interaction on, unless tokens were relaxed for drafts of older text
(``origin.drafted``). An item's text is written from its title and attributes alone, which know no label, so
its date is no leak.

Which interactions a user's text was written from, proved by its prompt.

Beside the text stands the SHA-256 of its prompt. The prompt is written again from the data at hand, with the
settings of the snapshot's manifest; where its SHA-256 is the same, the text has seen exactly those
interactions, and is safe for what comes after the last of them. Else all that is known is the text's date.
"""

import hashlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from dare_job.config.settings import HistorySettings, PromptSettings
from dare_job.data import render
from dare_job.data.history import end_of_day, window_size
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.ctr.examples import Examples
from dare_job.evaluate.ctr.knowledge import Knowledge
from dare_job.evaluate.ctr.source import Source
from dare_job.schemas import ATTRIBUTES, ITEMS

_BATCH = 2000
_NAMED = 3
_EVENTS = pa.list_(pa.struct([("item_id", pa.string()), ("rating", pa.float32())]))
_LOG = logging.getLogger("dare_job")


def ends(source: Source, items: str, settings: dict, texts: dict[str, tuple[str, int]]) -> dict[str, int]:
    """The second after the last interaction of the prompt, by user, for those whose prompt is proved.

    items     path of the items table of ``source``
    settings  of the manifest: ``history`` and ``prompts``
    texts     by user: SHA-256 (hex) of the prompt, and the end of the day whose run wrote the text
    """
    if "rating" not in source.interactions:
        return {}
    try:
        history = HistorySettings.model_validate(settings["history"])
        prompts = PromptSettings.model_validate(settings["prompts"])
        written = render.render_users(prompts.of("user"), items, "")
    except (KeyError, ValidationError, ConfigError):  # another version's settings, or a file that is gone
        return {}
    shown = {user: _window(events[events["timestamp"] < texts[user][1]], history)
             for user, events in _usable(source, history).groupby("user_id") if user in texts}
    attributes = dict(zip(source.users["user_id"], source.users["attributes"], strict=True))
    found = {}
    for batch in written(_batches(shown, attributes)):
        for user, prompt in zip(batch["entity_id"].to_pylist(), batch["prompt"].to_pylist(), strict=True):
            if prompt and hashlib.sha256(prompt.encode()).hexdigest() == texts[user][0]:
                found[user] = int(shown[user]["timestamp"].iloc[-1]) + 1
    return found


def _usable(source: Source, settings: HistorySettings) -> pd.DataFrame:
    """What can be in a history, in the order of a prompt: as ``data/history.py``, which asks Spark."""
    titled = source.items.loc[source.items["title"].fillna("").str.strip() != "", "item_id"]
    rows = source.interactions
    rows = rows[rows["item_id"].isin(titled)]
    if settings.min_rating is not None:
        rows = rows[rows["rating"].isna() | (rows["rating"] >= settings.min_rating)]
    rows = rows.drop_duplicates(["user_id", "timestamp", "item_id", "rating"])
    return rows.sort_values(["user_id", "timestamp", "item_id", "rating"], na_position="first")


def _window(events: pd.DataFrame, settings: HistorySettings) -> pd.DataFrame:
    if settings.window != "recent":
        size = window_size(len(events), settings.share)
        events = events.iloc[:size] if settings.window == "old" else events.iloc[len(events) - size:]
    return events.iloc[-settings.max_items:]


def _batches(shown: dict[str, pd.DataFrame], attributes: dict) -> Iterator[pa.RecordBatch]:
    """Users with a history, as ``render.users`` takes them."""
    users = [user for user, events in shown.items() if len(events)]
    for start in range(0, len(users), _BATCH):
        part = users[start:start + _BATCH]
        events = [[{"item_id": item, "rating": None if pd.isna(rating) else rating}
                   for item, rating in zip(shown[user]["item_id"], shown[user]["rating"], strict=True)]
                  for user in part]
        yield pa.RecordBatch.from_arrays(
            [pa.array(part, pa.string()), pa.array([0] * len(part), pa.int32()),
             pa.array([attributes.get(user) for user in part], ATTRIBUTES), pa.array(events, _EVENTS)],
            names=["entity_id", "interactions", "attributes", "history"])


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
        proved = ends(source, items, table.settings, texts)
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
