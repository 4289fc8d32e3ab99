"""Writes prompts from Arrow batches inside Spark's Python workers. Knows nothing about stages.

One endless title must not put every user who met it over the model's context: in a user's history a title
shows its first HISTORY_CHARACTERS, in the item's own prompt TITLE_CHARACTERS, and an attribute
HISTORY_CHARACTERS everywhere. An ellipsis ends what was cut.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dare_job import files, prompts
from dare_job.errors import ConfigError, RowError
from dare_job.prompts import HistoryItem

Batches = Iterator[pa.RecordBatch]
Written = tuple[str | None, str | None]  # prompt, error: one of the two
RENDERED = "entity_id string, interactions int, attributes map<string,string>, prompt string, error string"
HISTORY_CHARACTERS = 200
TITLE_CHARACTERS = 1000
_HASHED = 10_000  # ids that are Python strings at once
_KEPT = ["entity_id", "interactions", "attributes"]


def users(prompt_set: str, items: str, version: str) -> Callable[[Batches], Batches]:
    """Function for ``mapInArrow``: (entity_id, interactions, attributes, history) -> ``RENDERED``.

    ``items`` is the path of the items table, read once by each worker for each ``version`` of it.
    """
    known = prompts.load(prompt_set)  # here: executors may not see a file of the user's own

    def render(batches: Batches) -> Batches:
        shelf = _shelf(items, version)
        for batch in batches:
            rows = zip(batch["attributes"].to_pylist(), batch["history"].to_pylist(), strict=True)
            yield _extended(batch, [_user_prompt(known, shelf, *row) for row in rows])
    return render


def items(prompt_set: str) -> Callable[[Batches], Batches]:
    """Function for ``mapInArrow``: (entity_id, interactions, attributes, title) -> ``RENDERED``."""
    known = prompts.load(prompt_set)

    def render(batches: Batches) -> Batches:
        for batch in batches:
            rows = zip(batch["title"].to_pylist(), batch["attributes"].to_pylist(), strict=True)
            yield _extended(batch, [_item_prompt(known, *row) for row in rows])
    return render


class _Shelf:
    """Titles and attributes by item id, in Arrow; Python objects are made of those that are asked for.

    Places are found by hashes, 12 bytes an item: a dictionary of a million ids takes 200 MB of each worker.
    """

    def __init__(self, path: str):
        filesystem, name = files.arrow(files.path(path))
        table = pq.read_table(name, filesystem=filesystem, columns=["item_id", "title", "attributes"])
        table = table.combine_chunks()
        self._ids, self._titles, self._attributes = (
            table[name].combine_chunks() for name in ("item_id", "title", "attributes"))
        hashes = np.empty(len(table), dtype=np.int64)
        for start in range(0, len(table), _HASHED):
            ids = self._ids[start:start + _HASHED].to_pylist()
            hashes[start:start + len(ids)] = [hash(id_) for id_ in ids]
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._places = hashes[order], order.astype(np.int32)
        self._known = lru_cache(maxsize=1 << 16)(self._read)

    def entry(self, item_id: str, rating: float | None) -> HistoryItem | None:
        """The item as a prompt shows it, or None where there is no such item."""
        found = self._known(item_id)
        return found and HistoryItem(found[0], rating, found[1])

    def _read(self, item_id: str) -> tuple[str, dict[str, str]] | None:
        place = self._place(item_id)
        if place is None:
            return None
        title = capped(self._titles[place].as_py(), HISTORY_CHARACTERS)
        return title, _shown(self._attributes[place].as_py())

    def _place(self, item_id: str) -> int | None:
        wanted = hash(item_id)
        found = int(self._hashes.searchsorted(wanted))
        while found < len(self._hashes) and self._hashes[found] == wanted:
            place = int(self._places[found])
            if self._ids[place].as_py() == item_id:
                return place
            found += 1
        return None


@lru_cache(maxsize=1)
def _shelf(path: str, version: str) -> _Shelf:
    return _Shelf(path)


def _user_prompt(known: prompts.PromptSet, shelf: _Shelf, attributes, history) -> Written:
    entries = [shelf.entry(event["item_id"], event["rating"]) for event in history or ()]
    return _caught(known.user, _shown(attributes), [entry for entry in entries if entry])


def _item_prompt(known: prompts.PromptSet, title, attributes) -> Written:
    return _caught(known.item, capped(title or "", TITLE_CHARACTERS), _shown(attributes))


def capped(text: str, most: int) -> str:
    """The text, or as much of it as fits with an ellipsis into ``most`` characters."""
    return text if len(text) <= most else text[:most - 1].rstrip() + "…"


def _shown(attributes: list[tuple[str, str]] | None) -> dict[str, str]:
    return {name: capped(value, HISTORY_CHARACTERS) for name, value in attributes or () if value is not None}


def _caught(render: Callable[..., str], *arguments) -> Written:
    try:
        return render(*arguments), None
    except (RowError, ConfigError) as error:  # a template may ask for what just this row lacks
        return None, str(error)


def _extended(batch: pa.RecordBatch, written: list[Written]) -> pa.RecordBatch:
    prompt, error = (pa.array([row[place] for row in written], pa.string()) for place in (0, 1))
    return pa.RecordBatch.from_arrays([*batch.select(_KEPT).columns, prompt, error],
                                      names=[*_KEPT, "prompt", "error"])
