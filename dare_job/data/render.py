"""Writes prompts from Arrow batches inside Spark's Python workers. Knows nothing about stages.

One endless title must not put every user who met it over the model's context: in a user's history a title
shows its first HISTORY_CHARACTERS, in the item's own prompt TITLE_CHARACTERS, and an attribute
HISTORY_CHARACTERS everywhere. An ellipsis ends what was cut.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

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
    """Titles and attributes by item id; attributes become Python objects only when asked for."""

    def __init__(self, path: str):
        filesystem, name = files.arrow(files.path(path))
        table = pq.read_table(name, filesystem=filesystem, columns=["item_id", "title", "attributes"])
        table = table.combine_chunks()
        self._attributes = table["attributes"]
        self._titles = table["title"]
        self._place = {id_: place for place, id_ in enumerate(table["item_id"].to_pylist())}
        self.entry = lru_cache(maxsize=1 << 16)(self._entry)

    def _entry(self, item_id: str, rating: float | None) -> HistoryItem | None:
        place = self._place.get(item_id)
        if place is None:
            return None
        title = capped(self._titles[place].as_py(), HISTORY_CHARACTERS)
        return HistoryItem(title, rating, _shown(self._attributes[place].as_py()))


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
