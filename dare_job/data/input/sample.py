"""Draws users with a history and items with a title, in one pass over each table, without Spark.

The sample is that of the smallest seeded hashes of ids, so it does not depend on the order of the files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.config.settings import HistorySettings
from dare_job.data.history import window_size
from dare_job.data.input.source import InputSource
from dare_job.data.input.table import Table

_NARROWED_AFTER = 8  # batches
Event = tuple[int, str, float | None]  # timestamp, item id, rating


@dataclass(frozen=True)
class Entity:
    """Title and attributes of a user or item."""

    title: str | None
    attributes: dict[str, str]


@dataclass
class Interactions:
    """Interactions of the sampled users before the date.

    Attributes
    ----------
    events
        By user id.
    complete
        No other user has an interaction.
    rows, broken
        Of the whole table.
    """

    events: dict[str, list[Event]] = field(default_factory=dict)
    complete: bool = True
    rows: int = 0
    broken: int = 0


class _SmallestHashes:
    """Which ids have one of the n smallest hashes of all ids so far."""

    def __init__(self, n: int, seed: int):
        self._n, self._key, self._limit = n, f"{seed:016d}"[-16:], np.uint64(2**64 - 1)
        self._kept = np.zeros(0, np.uint64)
        self.complete = True

    def of(self, ids: pa.Array) -> np.ndarray:
        """(N,) uint64 hashes."""
        encoded = ids.dictionary_encode()
        names = encoded.dictionary.to_numpy(zero_copy_only=False)
        hashes = pd.util.hash_array(names, hash_key=self._key, categorize=False)
        return hashes[encoded.indices.to_numpy(zero_copy_only=False)]

    def add(self, hashes: np.ndarray) -> None:
        self._kept = np.union1d(self._kept, hashes[hashes <= self._limit])
        if len(self._kept) > self._n:
            self._kept, self.complete = self._kept[:self._n], False
            self._limit = self._kept[-1] if self._n else np.uint64(0)

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Names by their hashes."""
        names = sorted(names)
        return [names[place] for place in np.argsort(self.of(pa.array(names, pa.string())), kind="stable")]

    def keeps(self, hashes: np.ndarray) -> np.ndarray:
        """(N,) bool"""
        return (hashes <= self._limit) & bool(self._n)


def batches(table: Table) -> Iterator[pa.RecordBatch]:
    """All batches of a table, in order."""
    for part in table.parts():
        yield from table.read(part)


def interactions(source: InputSource, end_s: int, n: int, seed: int, named: Sequence[str]) -> Interactions:
    """Interactions before ``end_s`` of n users, chosen by hash, and of the users in ``named``."""
    smallest, past, kept = _SmallestHashes(n, seed), Interactions(), []
    names = pa.array(named, pa.string())
    for raw in batches(source.tables["interactions"]):
        batch = raw.filter(pc.is_null(raw["problem"])).select(["user_id", "item_id", "rating", "timestamp"])
        past.rows, past.broken = past.rows + len(raw), past.broken + len(raw) - len(batch)
        batch = batch.filter(pc.less(batch["timestamp"], end_s))
        new = smallest.of(batch["user_id"])
        smallest.add(new)
        kept.append((batch, new))
        if len(kept) > _NARROWED_AFTER:
            kept = [_narrowed(kept, smallest, names)]
    past.complete = smallest.complete
    for row in _narrowed(kept, smallest, names)[0].to_pylist() if kept else ():
        past.events.setdefault(row["user_id"], []).append((row["timestamp"], row["item_id"], row["rating"]))
    past.events = {user: past.events[user] for user in smallest.ordered(past.events)}
    return past


def _narrowed(parts: list[tuple], smallest: _SmallestHashes, names: pa.Array) -> tuple:
    """One batch, with its hashes, of the rows of users who are still sampled."""
    batch = pa.concat_batches([batch for batch, _ in parts])
    hashes = np.concatenate([each for _, each in parts])
    kept = smallest.keeps(hashes) | pc.is_in(batch["user_id"], names).to_numpy(zero_copy_only=False)
    return batch.filter(pa.array(kept)), hashes[kept]


def entities(table: Table | None, n: int, seed: int, named: Sequence[str]) -> dict[str, Entity]:
    """The n titled entities of the smallest hashes in their order, then those in ``named``.

    As in the run, the first row of an id counts, and the id is dropped if that row is broken.
    """
    smallest, entities_by_id = _SmallestHashes(n, seed), {}
    names = pa.array(named, pa.string())
    for batch in batches(table) if table else ():
        ids = pc.fill_null(batch.column(0), "")
        hashes, known = smallest.of(ids), pc.not_equal(pc.utf8_trim_whitespace(ids), "")
        titled = pc.and_(known, batch["title"].is_valid()) if "title" in batch.schema.names else known
        smallest.add(hashes[titled.to_numpy(zero_copy_only=False)])
        wanted = smallest.keeps(hashes) | pc.is_in(ids, names).to_numpy(zero_copy_only=False)
        rows = batch.filter(pa.array(wanted & known.to_numpy(zero_copy_only=False)))
        for name, row in zip(rows.column(0).to_pylist(), rows.to_pylist(), strict=True):
            if name not in entities_by_id:
                entities_by_id[name] = None if row["problem"] else Entity(
                    row.get("title"), dict(row["attributes"] or ()))
    return {name: entities_by_id[name] for name in smallest.ordered(entities_by_id)
            if entities_by_id[name] is not None}


def history(events: list[Event], titled: set[str], settings: HistorySettings
            ) -> list[tuple[str, float | None]]:
    """The (item id, rating) of a user's prompt, oldest first. See ``data.history.user_histories``."""
    low = settings.min_rating
    usable = {event for event in events if event[1] in titled
              and (low is None or event[2] is None or event[2] >= low)}
    ordered = sorted(usable, key=lambda event: (event[0], event[1], event[2] is not None, event[2] or 0.0))
    if settings.repeats == "newest":
        newest = {event[1]: event for event in ordered}
        ordered = [event for event in ordered if newest[event[1]] is event]
    n = len(ordered)
    window = n if settings.window == "recent" else window_size(n, settings.share)
    end = window if settings.window == "old" else n
    chosen = ordered[:end][-min(window, settings.max_items):] if n else []
    return [(item, rating) for _, item, rating in chosen]
