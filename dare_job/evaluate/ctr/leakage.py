"""No text may be generated from what it is used to predict.

A user's text of date D is generated from interactions up to the end of D (in the time zone
``input.day_boundary``), so a label of second s may use it if end_of_day(D) <= s. If its prompt is proved, a
label may use it from the second after the prompt's last interaction on, unless tokens were relaxed for drafts
of previous text (``knowledge.drafted``). An item's text is generated from its title and attributes, which
know no label.

A text's manifest has the SHA-256 of its prompt. The prompt is rendered again from the data at hand, with the
settings of the manifest. If the SHA-256 is the same, the text was generated from exactly those interactions.
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
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.ctr.examples import Examples
from dare_job.evaluate.ctr.inputs import rows_of
from dare_job.evaluate.ctr.knowledge import Knowledge
from dare_job.evaluate.ctr.source import Source
from dare_job.schemas import ATTRIBUTES, ITEMS

_BATCH = 2000
_EVENTS = pa.list_(pa.struct([("item_id", pa.string()), ("rating", pa.float32())]))
_LOG = logging.getLogger("dare_job")


def proved_ends(source: Source, items: str, settings: dict, prompts: dict[str, tuple[str, int]]
                ) -> dict[str, int]:
    """The second after the last interaction of the prompt, by user, for those whose prompt is proved.

    Parameters
    ----------
    items
        Path of the items table of ``source``.
    settings
        Of the manifest: ``history``, ``prompts`` and ``decode``.
    prompts
        By user: SHA-256 (hex) of the prompt, and the end of the day whose run generated the text.
    """
    if "rating" not in source.interactions:
        return {}
    try:
        history = HistorySettings.model_validate(settings["history"])
        limit = settings.get("decode", {}).get("max_new_tokens", EngineSettings.max_new_tokens)
        prompt = PromptSettings.model_validate(settings["prompts"]).of("user", limit)
        rendered = render.render_users(prompt, items, "")
    except (KeyError, ValidationError, ConfigError):  # another version's settings, or a file that is gone
        return {}
    windows = {user: _window(events[events["timestamp"] < prompts[user][1]], history)
               for user, events in _usable(source, history).groupby("user_id") if user in prompts}
    attributes = dict(zip(source.users["user_id"], source.users["attributes"], strict=True))
    ends = {}
    for batch in rendered(_batches(windows, attributes)):
        for user, text in zip(batch["entity_id"].to_pylist(), batch["prompt"].to_pylist(), strict=True):
            if text and hashlib.sha256(text.encode()).hexdigest() == prompts[user][0]:
                ends[user] = int(windows[user]["timestamp"].iloc[-1]) + 1
    return ends


def _usable(source: Source, settings: HistorySettings) -> pd.DataFrame:
    """Interactions that can be in a history, sorted as in prompts: the selection of ``data/history.py``,
    without Spark.
    """
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


def _batches(windows: dict[str, pd.DataFrame], attributes: dict) -> Iterator[pa.RecordBatch]:
    """Users with a history, as ``render_users`` reads them."""
    users = [user for user, events in windows.items() if len(events)]
    for start in range(0, len(users), _BATCH):
        part = users[start:start + _BATCH]
        events = [[{"item_id": item, "rating": None if pd.isna(rating) else rating}
                   for item, rating in zip(windows[user]["item_id"], windows[user]["rating"], strict=True)]
                  for user in part]
        yield pa.RecordBatch.from_arrays(
            [pa.array(part, pa.string()), pa.array([0] * len(part), pa.int32()),
             pa.array([attributes.get(user) for user in part], ATTRIBUTES), pa.array(events, _EVENTS)],
            names=["entity_id", "interactions", "attributes", "history"])


def bounded(table: Knowledge, source: Source) -> Knowledge:
    """The texts, with an earlier ``usable_from`` for users whose prompt the data reproduce."""
    if table.entity != "user" or not table.settings:
        return table
    prompts = {user: (table.prompts[user], int(end)) for user, end in
               zip(table.ids, table.usable_from, strict=True)
               if user in table.prompts and user not in table.drafted}
    with tempfile.TemporaryDirectory() as folder:
        items = str(Path(folder) / "items.parquet")
        pq.write_table(pa.Table.from_pandas(source.items, ITEMS, preserve_index=False), items)
        ends = proved_ends(source, items, table.settings, prompts)
    _LOG.info("the prompts of %d of %d users were reproduced from the interactions", len(ends),
              len(table.ids))
    drafted = sum(user in table.drafted for user in table.ids)
    if drafted and _cut_by_user(table):
        _LOG.warning("%d users' texts have relaxed tokens from drafts of previous texts, so they may depend "
                     "on all interactions before their run; every set uses only later labels of these "
                     "users", drafted)
    bounds = [ends.get(user, end) for user, end in zip(table.ids, table.usable_from, strict=True)]
    return replace(table, usable_from=np.array(bounds, np.int64))


def _cut_by_user(table: Knowledge) -> bool:
    return table.settings.get("history", {}).get("window") == "old"


def first_labels(tables: list[Knowledge]) -> int | pd.Series | None:
    """First second that may have labels: for all users, or by user if ``history.window`` was ``old``.

    None if there are no users' texts.
    """
    users = [table for table in tables if table.entity == "user" and len(table.ids)]
    if not users:
        return None
    if all(map(_cut_by_user, users)):
        bounds = pd.concat([pd.Series(table.usable_from, table.ids) for table in users])
        return bounds.groupby(level=0).max()
    return max(int(table.usable_from.max()) for table in users)


def refuse(name: str, table: Knowledge, examples: Examples) -> None:
    """Check that no label row would use a text from a history that may contain its label.

    Raises
    ------
    DataError
        A label row would use such a text.
    """
    if table.entity != "user" or not len(table.usable_from):
        return
    text = rows_of(table, examples)
    used = text >= 0
    late = used & (table.usable_from[text] > examples.second)
    if not late.any():
        return
    rows = np.flatnonzero(late)
    first = rows[0]
    safe = datetime.fromtimestamp(int(table.usable_from[text[late]].max()) + 86_399, UTC).date()
    raise DataError(
        f"--knowledge {name}: {len(rows)} of {int(used.sum())} label rows would use a user's text that may "
        f"contain the label, such as {table.ids[text[first]]} (generated from interactions before "
        f"{_time(table.usable_from[text[first]])}, label of {_time(examples.second[first])}). Use text of an "
        f"earlier date (--date), or labels from {safe} on (--labels-from {safe})")


def first_second(day: date) -> int:
    """First second (UTC, since 1970) of a day."""
    return end_of_day(day) - 86_400


def _time(second: int) -> str:
    return datetime.fromtimestamp(int(second), UTC).strftime("%Y-%m-%d %H:%M:%S")
