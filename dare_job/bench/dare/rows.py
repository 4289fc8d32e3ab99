"""Rows of the bench: who is asked about, with which prompt, before and now."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.bench.dare.frameworks import Framework
from dare_job.bench.dare.tables import Data, drawn
from dare_job.data import render
from dare_job.errors import ConfigError
from dare_job.tables import ATTRIBUTES, ITEMS

_HISTORY = pa.list_(pa.struct([("item_id", pa.string()), ("rating", pa.float32())]))


@dataclass(frozen=True)
class Rows:
    """Prompts by id: ``old`` of everybody with old text, ``new`` of the test rows."""

    old: dict[str, str]
    new: dict[str, str]


def of(data: Data, framework: Framework, entity: str, count: int, old_items: int, work: Path) -> Rows:
    """Old prompts and ``count`` test rows, the same for every framework.

    Users: those of the data have old text of their old window; tests are asked by their new window. Items: at
    most ``old_items`` of the existing half have old text; tests are of the new half. Raises ConfigError where
    a prompt cannot be written.
    """
    if entity == "user":
        users = sorted(data.users)
        return Rows(_users(data, framework, users, "old", work),
                    _users(data, framework, drawn(users, count), "new", work))
    existing = drawn(sorted(set(data.items) - data.new_items), old_items)
    return Rows(_items(data, framework, existing),
                _items(data, framework, drawn(sorted(data.new_items), count)))


def _users(data: Data, framework: Framework, users: Sequence[str], which: str, work: Path) -> dict[str, str]:
    shelf = work / "shelves" / f"{data.name}.parquet"
    if not shelf.exists():
        shelf.parent.mkdir(parents=True, exist_ok=True)
        rows = [(item, *entry) for item, entry in sorted(data.items.items())]
        columns = [pa.array(column, field.type)
                   for column, field in zip(zip(*rows, strict=True), ITEMS, strict=True)]
        pq.write_table(pa.table(columns, schema=ITEMS), shelf)
    windows = [[{"item_id": item, "rating": rating} for item, rating in data.window(user, which)]
               for user in users]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(users), pa.array([len(window) for window in windows], pa.int32()),
         pa.array([data.users[user] for user in users], ATTRIBUTES), pa.array(windows, _HISTORY)],
        names=["entity_id", "interactions", "attributes", "history"])
    return _prompts(render.users(framework.prompts, str(shelf), str(shelf))(iter([batch])))


def _items(data: Data, framework: Framework, items: Sequence[str]) -> dict[str, str]:
    titles, attributes = zip(*(data.items[item] for item in items), strict=True)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(items), pa.array([0] * len(items), pa.int32()), pa.array(attributes, ATTRIBUTES),
         pa.array(titles)],
        names=["entity_id", "interactions", "attributes", "title"])
    return _prompts(render.items(framework.prompts)(iter([batch])))


def _prompts(rendered) -> dict[str, str]:
    rows = [row for batch in rendered for row in batch.to_pylist()]
    if errors := [row for row in rows if row["error"]]:
        raise ConfigError(f"no prompt can be written for {errors[0]['entity_id']}: {errors[0]['error']}; "
                          "name other prompt sets with --prompts")
    return {row["entity_id"]: row["prompt"] for row in rows}
