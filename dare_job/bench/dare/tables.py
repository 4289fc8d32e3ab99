"""The data of the bench in memory, and its two halves: what was there, and what is to generate.

Rows of the bench: who is asked about, with which prompt, before and now.
"""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.bench.dare.models import Framework
from dare_job.config.settings import HistorySettings, JobConfig
from dare_job.data import render
from dare_job.data.history import window_size
from dare_job.data.input import prepare_input
from dare_job.data.sample_world.write import write_world
from dare_job.errors import ConfigError
from dare_job.job import Job
from dare_job.schemas import ATTRIBUTES, ITEMS
from dare_job.workspace import Workspace, committing, digest, is_done

DATA = ("ml-1m", "sample")
SHOWN = 20  # titles in a user's prompt, at most: m
_DAY = date(2026, 1, 2)
_SHARE = HistorySettings().share
_LONGEST = math.ceil(SHOWN / _SHARE)  # n: the interactions that the two windows are cut from
_FEWEST = 4
_COLUMNS = pa.schema([
    ("entity_id", pa.string()), ("interactions", pa.int32()), ("attributes", ATTRIBUTES),
    ("title", pa.string()),
    ("history", pa.list_(pa.struct([("item_id", pa.string()), ("rating", pa.float32())])))])
_WORLD_ITEMS = 0.6  # items of the sample world for each user,
_FEWEST_ITEMS = 120  # and as many that histories can be as long as the windows


@dataclass(frozen=True)
class Data:
    """users      attributes by id
    items      (title, attributes) by id
    histories  (item id, rating) by user, oldest first, at least four
    new_items  the half of the items, drawn by seed, that has no old text
    """

    name: str
    users: dict[str, list]
    items: dict[str, tuple[str, list]]
    histories: dict[str, list[tuple[str, float | None]]]
    new_items: frozenset[str]

    def window(self, user: str, which: str) -> list[tuple[str, float | None]]:
        """The "old" or "new" part of a user's last interactions: the first or last m of n, n/2 < m < n."""
        recent = self.histories[user][-_LONGEST:]
        m = window_size(len(recent), _SHARE)
        return recent[:m] if which == "old" else recent[-m:]

    def known(self, user: str) -> list[str]:
        """Items of all interactions up to the end of the old window."""
        recent = self.histories[user][-_LONGEST:]
        items = [item for item, _ in self.histories[user]]
        return items[:len(items) - len(recent) + window_size(len(recent), _SHARE)]


def default() -> str:
    """ML-1M where DARE_DATA is set, else the sample world."""
    return DATA[0] if os.environ.get("DARE_DATA") else DATA[1]


def load(name: str, users: int, work: Path) -> Data:
    """A data set cut to ``users`` users, by seed.

    Raises ConfigError where DARE_DATA is needed and missing, DataError for files that do not serve.
    """
    folder = _tables(name, users, work)
    items = {row["item_id"]: (row["title"], row["attributes"] or [])
             for row in pq.read_table(folder / "items.parquet").to_pylist() if (row["title"] or "").strip()}
    attributes = {row["user_id"]: row["attributes"] or []
                  for row in pq.read_table(folder / "users.parquet").to_pylist()}
    events = pq.read_table(folder / "interactions.parquet")
    histories = defaultdict(list)
    order = [(name, "ascending") for name in ("user_id", "timestamp", "item_id")]
    for row in events.sort_by(order).to_pylist():
        if row["item_id"] in items:
            histories[row["user_id"]].append((row["item_id"], row["rating"]))
    able = [user for user in sorted(histories) if len(histories[user]) >= _FEWEST]
    chosen = drawn(able, users)
    new = frozenset(drawn(sorted(items), len(items) // 2))
    return Data(name, {user: attributes.get(user, []) for user in chosen}, items,
                {user: histories[user] for user in chosen}, new)


def drawn(ids: Sequence[str], count: int) -> list[str]:
    """``count`` of the ids, or all of them, by a fixed seed, in a random order."""
    order = np.random.default_rng(0).permutation(len(ids))
    return [ids[place] for place in order[:count]]


def _tables(name: str, users: int, work: Path) -> Path:
    """Folder with the contract tables, made once."""
    if name == "sample":
        folder = work / f"sample-{users}"
        made_of = digest([name, users])
        if not is_done(folder, made_of):
            with committing(folder, made_of, {}) as staging:
                items = max(_FEWEST_ITEMS, int(_WORLD_ITEMS * users))
                write_world(staging, users=users + users // 10, items=items)
        return folder
    if not os.environ.get("DARE_DATA"):
        raise ConfigError(f"--data {name} needs the variable DARE_DATA: the folder that holds {name}/; "
                          "or use --data sample")
    return _read(Path(os.environ["DARE_DATA"]) / name, work / name)


def _read(source: Path, out: Path) -> Path:
    """The job's own copy of an input, read on Spark where there is none yet."""
    from pyspark.sql import SparkSession

    config = JobConfig.model_validate({"input": {"path": str(source)}, "spark": {"master": "local[2]"}})
    job, before = Job(config, Workspace(out, _DAY), "bench"), SparkSession.getActiveSession()
    folder = prepare_input(job)
    if "spark" in vars(job) and before is None:
        job.spark.stop()  # its JVM would share the processors with what is measured
    return folder


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
        items = [dict(zip(ITEMS.names, (item, *entry), strict=True)) for item, entry in data.items.items()]
        pq.write_table(pa.Table.from_pylist(sorted(items, key=lambda row: row["item_id"]), ITEMS), shelf)
    windows = {user: data.window(user, which) for user in users}
    rows = [{"entity_id": user, "interactions": len(window), "attributes": data.users[user],
             "history": [{"item_id": item, "rating": rating} for item, rating in window]}
            for user, window in windows.items()]
    return _prompts(render.render_users(framework.prompts, str(shelf), str(shelf)), rows, "history")


def _items(data: Data, framework: Framework, items: Sequence[str]) -> dict[str, str]:
    rows = [{"entity_id": item, "interactions": 0, "attributes": data.items[item][1],
             "title": data.items[item][0]} for item in items]
    return _prompts(render.render_items(framework.prompts), rows, "title")


def _prompts(rendering: Callable, asked: list[dict], last: str) -> dict[str, str]:
    """Prompts by id of the rows asked about, whose ``last`` column is the entity type's own."""
    batch = pa.RecordBatch.from_pylist(asked, pa.schema([_COLUMNS.field(name) for name in (
        "entity_id", "interactions", "attributes", last)]))
    rows = [row for rendered in rendering(iter([batch])) for row in rendered.to_pylist()]
    if errors := [row for row in rows if row["error"]]:
        raise ConfigError(f"no prompt can be written for {errors[0]['entity_id']}: {errors[0]['error']}; "
                          "name other prompt sets with --prompts")
    return {row["entity_id"]: row["prompt"] for row in rows}
