"""Which interactions a user's text was written from, proved by its prompt.

Beside the text stands the SHA-256 of its prompt. The prompt is written again from the data at hand, with the
settings of the snapshot's manifest; where its SHA-256 is the same, the text has seen exactly those
interactions, and is safe for what comes after the last of them. Else all that is known is the text's date.
"""

import hashlib
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
from pydantic import ValidationError

from dare_job.config import HistorySettings, PromptSettings
from dare_job.ctr.source import Source
from dare_job.data import render
from dare_job.data.history import window_size
from dare_job.errors import ConfigError
from dare_job.tables import ATTRIBUTES

_BATCH = 2000
_EVENTS = pa.list_(pa.struct([("item_id", pa.string()), ("rating", pa.float32())]))


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
        written = render.users(prompts.of("user"), items, "")
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
