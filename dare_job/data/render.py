"""Renders prompts from Arrow batches in Spark's Python workers. Independent of stages.

A long title must not push the prompts of its users over the model's context. So titles are truncated
to HISTORY_CHARACTERS in user histories and to TITLE_CHARACTERS in the item's own prompt, and attributes to
HISTORY_CHARACTERS. An ellipsis marks truncated text.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.data.item_vectors import IdRows, item_vectors
from dare_job.errors import ConfigError, RowError
from dare_job.prompts.sets import HistoryItem, PromptSet
from dare_job.schemas import TRAFFIC
from dare_job.storage import paths

Batches = Iterator[pa.RecordBatch]
Rendered = tuple[str | None, str | None]  # prompt and error; exactly one is None
# What the stage plan gets back: its own columns without history and title, and those added here.
RENDERED = ("entity_id string, interactions int, attributes map<string,string>, times array<bigint>, "
            "prompt string, error string, moved array<float>")
HISTORY_CHARACTERS = 200
TITLE_CHARACTERS = 1000
_MAX_CACHED = 1 << 16  # maximum cached items, not counting those of the current batch
_OF_PROMPTS = ("history", "title")


def render_users(prompt_set: PromptSet, items: str, version: str, vectors: tuple[str, str] | None = None,
                 shown: int | None = None) -> Callable[[Batches], Batches]:
    """Function for ``mapInArrow``: adds prompt, error and moved to rows with attributes and history.

    Parameters
    ----------
    items, version
        Path of the items table, which each worker reads once per version.
    vectors
        Path and version of the item vectors for ``moved`` (``ItemVectors.moved``). None: it is null.
    shown
        Entries of a history that prompts know; longer ones serve ``moved``. None: all.
    """
    def render(batches: Batches) -> Batches:
        lookup = _item_lookup(items, version)
        for batch in batches:
            histories = batch["history"]
            entries = lookup.entries(pc.unique(histories.flatten().field("item_id")).to_pylist())
            rows = zip(batch["attributes"].to_pylist(), histories.to_pylist(), strict=True)
            moved = None
            if vectors:
                moved = item_vectors(*vectors).moved(histories, min(shown, prompt_set.max_history))
                rows = ((attributes, history and history[-shown:]) for attributes, history in rows)
            yield _add_columns(batch, [_user_prompt(prompt_set, entries, *row) for row in rows], moved)
    return render


def render_items(prompt_set: PromptSet) -> Callable[[Batches], Batches]:
    """Function for ``mapInArrow``: adds prompt, error and moved (null) to rows with attributes and title."""
    def render(batches: Batches) -> Batches:
        for batch in batches:
            rows = zip(batch["title"].to_pylist(), batch["attributes"].to_pylist(), strict=True)
            yield _add_columns(batch, [_item_prompt(prompt_set, *row) for row in rows])
    return render


class _ItemLookup:
    """Titles and attributes by item id, stored in Arrow. Only requested items become Python objects."""

    def __init__(self, path: str):
        filesystem, name = paths.arrow_location(paths.path(path))
        table = pq.read_table(name, filesystem=filesystem, columns=["item_id", "title", "attributes"])
        self._items = table.combine_chunks()
        self._rows = IdRows(pa.concat_arrays(self._items["item_id"].chunks or [pa.array([], pa.string())]))
        self._known: dict[str, tuple[str, dict[str, str]] | None] = {}

    def entries(self, ids: Iterable[str]) -> dict[str, tuple[str, dict[str, str]] | None]:
        """Truncated title and attributes of items by id; None for unknown items."""
        if len(self._known) > _MAX_CACHED:
            self._known = {}
        missing = [id_ for id_ in set(ids) if id_ not in self._known]
        self._known |= dict.fromkeys(missing)
        rows = self._rows.find(missing)
        for item in self._items.take(pa.array(rows[rows >= 0])).to_pylist():
            attributes = _truncate_attributes(item["attributes"])
            self._known[item["item_id"]] = truncate(item["title"], HISTORY_CHARACTERS), attributes
        return self._known


@lru_cache(maxsize=1)
def _item_lookup(path: str, version: str) -> _ItemLookup:
    return _ItemLookup(path)


def _user_prompt(prompt_set: PromptSet, items: dict, attributes, history) -> Rendered:
    entries = [HistoryItem(item[0], event["rating"], item[1]) for event in history or ()
               if (item := items[event["item_id"]])]
    return _prompt_or_error(prompt_set.user, _truncate_attributes(attributes), entries)


def _item_prompt(prompt_set: PromptSet, title, attributes) -> Rendered:
    return _prompt_or_error(prompt_set.item, truncate(title or "", TITLE_CHARACTERS),
                            _truncate_attributes(attributes))


def truncate(text: str, max_characters: int) -> str:
    """Truncate a text to ``max_characters`` with an ellipsis."""
    return text if len(text) <= max_characters else text[:max_characters - 1].rstrip() + "…"


def _truncate_attributes(attributes: list[tuple[str, str]] | None) -> dict[str, str]:
    return {name: truncate(value, HISTORY_CHARACTERS)
            for name, value in attributes or () if value is not None and name != TRAFFIC}


def _prompt_or_error(render: Callable[..., str], *arguments) -> Rendered:
    try:
        return render(*arguments), None
    except (RowError, ConfigError) as error:  # a template may use an attribute that only this row lacks
        return None, str(error)


def _add_columns(batch: pa.RecordBatch, rendered: list[Rendered], moved: pa.Array | None = None
                 ) -> pa.RecordBatch:
    prompt, error = (pa.array([row[place] for row in rendered], pa.string()) for place in (0, 1))
    moved = pa.nulls(len(batch), pa.list_(pa.float32())) if moved is None else moved
    kept = [name for name in batch.schema.names if name not in _OF_PROMPTS]
    return pa.RecordBatch.from_arrays([*batch.select(kept).columns, prompt, error, moved],
                                      names=[*kept, "prompt", "error", "moved"])
