"""The data of the bench in memory, split into rows with previous texts and test rows, and their prompts."""

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

from dare_job.bench.kept import keep
from dare_job.config.settings import HistorySettings, JobConfig
from dare_job.data import render
from dare_job.data.history import window_size
from dare_job.data.input.prepare import prepare_input
from dare_job.data.sample_world.write import write_world
from dare_job.errors import ConfigError
from dare_job.job import Job
from dare_job.prompts.sets import PromptSet
from dare_job.schemas import ATTRIBUTES, ITEMS
from dare_job.workspace import Workspace

DATA = ("ml-1m", "sample")
MAX_TITLES = 20  # in a user's prompt: m
_DAY = date(2026, 1, 2)
_SHARE = HistorySettings().share
_LONGEST = math.ceil(MAX_TITLES / _SHARE)  # n: the interactions that the two windows are cut from
_FEWEST = 4
_COLUMNS = pa.schema([
    ("entity_id", pa.string()), ("interactions", pa.int32()), ("attributes", ATTRIBUTES),
    ("title", pa.string()),
    ("history", pa.list_(pa.struct([("item_id", pa.string()), ("rating", pa.float32())])))])
_WORLD_ITEMS = 0.6  # items of the synthetic data set per user
_FEWEST_ITEMS = 120  # so many that histories can be as long as the windows


@dataclass(frozen=True)
class Data:
    """Users, items and interactions of a dataset.

    Attributes
    ----------
    users
        Attributes by id.
    items
        Title and attributes by id.
    histories
        Item id and rating by user, oldest first, at least four.
    new_items
        The half of the items, sampled by seed, that has no previous text.
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
    """ML-1M where DARE_DATA is set, else the synthetic data set."""
    return DATA[0] if os.environ.get("DARE_DATA") else DATA[1]


def load(name: str, users: int, work: Path) -> Data:
    """A data set with a sample of ``users`` users.

    Raises
    ------
    ConfigError
        DARE_DATA is needed and not set.
    DataError
        A file is missing or invalid.
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
    sampled = sample([user for user in sorted(histories) if len(histories[user]) >= _FEWEST], users)
    new = frozenset(sample(sorted(items), len(items) // 2))
    return Data(name, {user: attributes.get(user, []) for user in sampled}, items,
                {user: histories[user] for user in sampled}, new)


def sample(ids: Sequence[str], count: int) -> list[str]:
    """``count`` of the ids, or all of them, by a fixed seed, in a random order."""
    order = np.random.default_rng(0).permutation(len(ids))
    return [ids[place] for place in order[:count]]


def _tables(name: str, users: int, work: Path) -> Path:
    """Folder with the contract tables, made once."""
    if name == "sample":
        def fill(out: Path) -> None:
            write_world(out, users=users + users // 10, items=max(_FEWEST_ITEMS, int(_WORLD_ITEMS * users)))

        folder = work / f"sample-{users}"
        keep(folder, [name, users], fill)
        return folder
    if not os.environ.get("DARE_DATA"):
        raise ConfigError(f"--data {name} needs the variable DARE_DATA: the folder that holds {name}/; "
                          "or use --data sample")
    return _read(Path(os.environ["DARE_DATA"]) / name, work / name)


def _read(source: Path, out: Path) -> Path:
    """The job's own copy of an input, read on Spark if it is missing."""
    from pyspark.sql import SparkSession

    config = JobConfig.model_validate({"input": {"path": str(source)}, "spark": {"master": "local[2]"}})
    job, before = Job(config, Workspace(out, _DAY), "bench"), SparkSession.getActiveSession()
    folder = prepare_input(job)
    if "spark" in vars(job) and before is None:
        job.spark.stop()  # its JVM would share the processors with what is measured
    return folder


@dataclass(frozen=True)
class Rows:
    """Prompts by id: ``old`` of all users with a previous text, ``new`` of the test rows."""

    old: dict[str, str]
    new: dict[str, str]


def prompts_of(data: Data, prompts: PromptSet, entity: str, count: int, old_items: int, work: Path) -> Rows:
    """Old prompts and those of ``count`` test rows, the same rows for every prompt set.

    Users: all have a previous text of their old window; test rows have the prompt of their new window. Items:
    at most ``old_items`` of the existing half have a previous text; test rows are of the new half.

    Raises
    ------
    ConfigError
        A prompt cannot be rendered.
    """
    if entity == "user":
        users = sorted(data.users)
        return Rows(_users(data, prompts, users, "old", work),
                    _users(data, prompts, sample(users, count), "new", work))
    existing = sample(sorted(set(data.items) - data.new_items), old_items)
    return Rows(_items(data, prompts, existing),
                _items(data, prompts, sample(sorted(data.new_items), count)))


def _users(data: Data, prompts: PromptSet, users: Sequence[str], which: str, work: Path) -> dict[str, str]:
    shelf = work / "shelves" / f"{data.name}.parquet"
    if not shelf.exists():
        shelf.parent.mkdir(parents=True, exist_ok=True)
        items = [dict(zip(ITEMS.names, (item, *entry), strict=True)) for item, entry in data.items.items()]
        pq.write_table(pa.Table.from_pylist(sorted(items, key=lambda row: row["item_id"]), ITEMS), shelf)
    windows = {user: data.window(user, which) for user in users}
    rows = [{"entity_id": user, "interactions": len(window), "attributes": data.users[user],
             "history": [{"item_id": item, "rating": rating} for item, rating in window]}
            for user, window in windows.items()]
    return _prompts(render.render_users(prompts, str(shelf), str(shelf)), rows, "history")


def _items(data: Data, prompts: PromptSet, items: Sequence[str]) -> dict[str, str]:
    rows = [{"entity_id": item, "interactions": 0, "attributes": data.items[item][1],
             "title": data.items[item][0]} for item in items]
    return _prompts(render.render_items(prompts), rows, "title")


def _prompts(rendering: Callable, rows: list[dict], last: str) -> dict[str, str]:
    """Prompts by id of rows whose ``last`` column is the entity type's own."""
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([_COLUMNS.field(name) for name in (
        "entity_id", "interactions", "attributes", last)]))
    rendered = [row for part in rendering(iter([batch])) for row in part.to_pylist()]
    if errors := [row for row in rendered if row["error"]]:
        raise ConfigError(f"no prompt can be rendered for {errors[0]['entity_id']}: {errors[0]['error']}; "
                          "name other prompt sets with --prompts")
    return {row["entity_id"]: row["prompt"] for row in rendered}
