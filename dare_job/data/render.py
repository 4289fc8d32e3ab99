"""Renders prompts from Arrow batches in Spark's Python workers. Independent of stages.

Long titles must not push the prompts of all their users over the model's context. So titles are truncated
to HISTORY_CHARACTERS in user histories and to TITLE_CHARACTERS in the item's own prompt, and attributes to
HISTORY_CHARACTERS. An ellipsis marks truncated text.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.errors import ConfigError, RowError
from dare_job.prompts.sets import HistoryItem, PromptSet
from dare_job.storage import paths

Batches = Iterator[pa.RecordBatch]
Written = tuple[str | None, str | None]  # prompt, error: one of the two
RENDERED = "entity_id string, interactions int, attributes map<string,string>, prompt string, error string"
HISTORY_CHARACTERS = 200
TITLE_CHARACTERS = 1000
_LOOKUP_BATCH = 10_000  # ids that are Python strings at once
_MAX_CACHED = 1 << 16  # items that are kept as Python objects, and those of one batch
_KEPT_COLUMNS = ["entity_id", "interactions", "attributes"]


def render_users(prompt_set: PromptSet, items: str, version: str) -> Callable[[Batches], Batches]:
    """Function for ``mapInArrow``: (entity_id, interactions, attributes, history) -> ``RENDERED``.

    ``items`` is the path of the items table, read once by each worker for each ``version`` of it.
    """
    def render(batches: Batches) -> Batches:
        shelf = _item_lookup(items, version)
        for batch in batches:
            histories = batch["history"]
            found = shelf.entries(pc.unique(histories.flatten().field("item_id")).to_pylist())
            rows = zip(batch["attributes"].to_pylist(), histories.to_pylist(), strict=True)
            yield _add_columns(batch, [_user_prompt(prompt_set, found, *row) for row in rows])
    return render


def render_items(prompt_set: PromptSet) -> Callable[[Batches], Batches]:
    """Function for ``mapInArrow``: (entity_id, interactions, attributes, title) -> ``RENDERED``."""
    def render(batches: Batches) -> Batches:
        for batch in batches:
            rows = zip(batch["title"].to_pylist(), batch["attributes"].to_pylist(), strict=True)
            yield _add_columns(batch, [_item_prompt(prompt_set, *row) for row in rows])
    return render


class _ItemLookup:
    """Titles and attributes by item id, in Arrow; Python objects are made of those that are asked for.

    Places are found by hashes, 12 bytes an item: a dictionary of a million ids takes 200 MB of each worker.
    """

    def __init__(self, path: str):
        filesystem, name = paths.arrow_location(paths.path(path))
        table = pq.read_table(name, filesystem=filesystem, columns=["item_id", "title", "attributes"])
        table = table.combine_chunks()
        self._ids, self._titles, self._attributes = (
            table[name].combine_chunks() for name in ("item_id", "title", "attributes"))
        hashes = np.empty(len(table), dtype=np.int64)
        for start in range(0, len(table), _LOOKUP_BATCH):
            ids = self._ids[start:start + _LOOKUP_BATCH].to_pylist()
            hashes[start:start + len(ids)] = [hash(id_) for id_ in ids]
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._places = hashes[order], order.astype(np.int32)
        self._known: dict[str, tuple[str, dict[str, str]] | None] = {}

    def entries(self, ids: Iterable[str]) -> dict[str, tuple[str, dict[str, str]] | None]:
        """Title and attributes of items as prompts show them, by id; None: there is no such item."""
        wanted = set(ids)
        if len(self._known) > _MAX_CACHED:
            self._known = {}
        asked = [id_ for id_ in wanted if id_ not in self._known]
        for start in range(0, len(asked), _LOOKUP_BATCH):
            self._read(asked[start:start + _LOOKUP_BATCH])
        return self._known

    def _read(self, ids: list[str]) -> None:
        """All at once: an item by itself takes five times as long."""
        places = self._found(ids)
        chosen = pa.array(places[places >= 0])
        titles, attributes = (table.take(chosen).to_pylist() for table in (self._titles, self._attributes))
        self._known |= dict.fromkeys(ids)
        there = (id_ for id_, place in zip(ids, places.tolist(), strict=True) if place >= 0)
        for id_, title, shown in zip(there, titles, attributes, strict=True):
            self._known[id_] = truncate(title, HISTORY_CHARACTERS), _truncate_attributes(shown)

    def _found(self, ids: list[str]) -> np.ndarray:
        """int64 (ids,): the place of each; -1: nowhere."""
        hashes = np.array([hash(id_) for id_ in ids], np.int64)
        first = self._hashes.searchsorted(hashes)
        if not len(self._hashes):
            return np.full(len(ids), -1)
        likely = self._places[first.clip(max=len(self._hashes) - 1)].astype(np.int64)
        there = self._ids.take(pa.array(likely)).to_pylist()
        for number, (id_, found) in enumerate(zip(ids, there, strict=True)):
            if id_ != found:
                likely[number] = self._among(id_, int(first[number]), hashes[number])
        return likely

    def _among(self, id_: str, at: int, hashed: int) -> int:
        """The place of an id among those whose hash is the same; -1: none is it."""
        while at < len(self._hashes) and self._hashes[at] == hashed:
            if self._ids[int(self._places[at])].as_py() == id_:
                return int(self._places[at])
            at += 1
        return -1


@lru_cache(maxsize=1)
def _item_lookup(path: str, version: str) -> _ItemLookup:
    return _ItemLookup(path)


def _user_prompt(known: PromptSet, found: dict, attributes, history) -> Written:
    entries = [HistoryItem(item[0], event["rating"], item[1]) for event in history or ()
               if (item := found[event["item_id"]])]
    return _prompt_or_error(known.user, _truncate_attributes(attributes), entries)


def _item_prompt(known: PromptSet, title, attributes) -> Written:
    return _prompt_or_error(known.item, truncate(title or "", TITLE_CHARACTERS),
                            _truncate_attributes(attributes))


def truncate(text: str, most: int) -> str:
    """The text, or as much of it as fits with an ellipsis into ``most`` characters."""
    return text if len(text) <= most else text[:most - 1].rstrip() + "…"


def _truncate_attributes(attributes: list[tuple[str, str]] | None) -> dict[str, str]:
    return {name: truncate(value, HISTORY_CHARACTERS)
            for name, value in attributes or () if value is not None}


def _prompt_or_error(render: Callable[..., str], *arguments) -> Written:
    try:
        return render(*arguments), None
    except (RowError, ConfigError) as error:  # a template may ask for what just this row lacks
        return None, str(error)


def _add_columns(batch: pa.RecordBatch, written: list[Written]) -> pa.RecordBatch:
    prompt, error = (pa.array([row[place] for row in written], pa.string()) for place in (0, 1))
    return pa.RecordBatch.from_arrays([*batch.select(_KEPT_COLUMNS).columns, prompt, error],
                                      names=[*_KEPT_COLUMNS, "prompt", "error"])
