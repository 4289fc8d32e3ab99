"""Writes prompts from Arrow batches inside Spark's Python workers. Knows nothing about stages."""

from collections.abc import Callable, Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job import prompts
from dare_job.errors import RowError
from dare_job.prompts import HistoryItem

RENDERED = "entity_id string, prompt string, error string"


def check(prompt_set: str, entity: str) -> None:
    """Render one prompt, so that a template's mistake is raised once, here, and as ConfigError."""
    known = prompts.load(prompt_set)
    if entity == "user":
        known.user({"name": "value"}, [HistoryItem("title", 1.0, {"name": "value"})])
    else:
        known.item("title", {"name": "value"})


def users(prompt_set: str, items: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Function for ``mapInArrow``: (entity_id, attributes, history) -> ``RENDERED``.

    ``items`` is the path of the items table, read once by each worker.
    """
    def render(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known, shelf = prompts.load(prompt_set), _shelf(items)
        for batch in batches:
            columns = (batch["entity_id"], batch["attributes"], batch["history"])
            yield _written((id_, _user_prompt(known, shelf, attributes, history))
                           for id_, attributes, history in zip(*(c.to_pylist() for c in columns), strict=True))
    return render


def items(prompt_set: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Function for ``mapInArrow``: (entity_id, title, attributes) -> ``RENDERED``."""
    def render(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = prompts.load(prompt_set)
        for batch in batches:
            columns = (batch["entity_id"], batch["title"], batch["attributes"])
            yield _written((id_, _caught(known.item, title or "", dict(attributes or ())))
                           for id_, title, attributes in zip(*(c.to_pylist() for c in columns), strict=True))
    return render


class _Shelf:
    """Titles and attributes by item id; attributes become Python objects only when asked for."""

    def __init__(self, path: str):
        table = pq.read_table(path, columns=["item_id", "title", "attributes"]).combine_chunks()
        self._attributes = table["attributes"]
        self._titles = table["title"]
        self._place = {id_: place for place, id_ in enumerate(table["item_id"].to_pylist())}
        self.entry = lru_cache(maxsize=1 << 16)(self._entry)

    def _entry(self, item_id: str, rating: float | None) -> HistoryItem | None:
        place = self._place.get(item_id)
        if place is None:
            return None
        return HistoryItem(self._titles[place].as_py(), rating, dict(self._attributes[place].as_py() or ()))


@lru_cache(maxsize=1)
def _shelf(path: str) -> _Shelf:
    return _Shelf(path)


def _user_prompt(known: prompts.PromptSet, shelf: _Shelf, attributes, history) -> tuple[str | None, str | None]:
    entries = [shelf.entry(event["item_id"], event["rating"]) for event in history or ()]
    return _caught(known.user, dict(attributes or ()), [entry for entry in entries if entry])


def _caught(render: Callable[..., str], *arguments) -> tuple[str | None, str | None]:
    try:
        return render(*arguments), None
    except RowError as error:
        return None, str(error)


def _written(rows) -> pa.RecordBatch:
    ids, results = [], []
    for id_, result in rows:
        ids.append(id_)
        results.append(result)
    text = [pa.array(column, pa.string()) for column in
            (ids, [prompt for prompt, _ in results], [error for _, error in results])]
    return pa.RecordBatch.from_arrays(text, names=["entity_id", "prompt", "error"])
