"""The data of the bench in memory, and its two halves: what was there, and what is asked about anew."""

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from dare_job.config import HistorySettings, JobConfig
from dare_job.data.history import window_size
from dare_job.data.prepare import prepare
from dare_job.data.world import write_world
from dare_job.errors import ConfigError
from dare_job.job import Job
from dare_job.workspace import Workspace, committing, digest, is_done

DATA = ("ml-1m", "sample")
SHOWN = 20  # titles in a user's prompt, at most: m
_DAY = date(2026, 1, 2)
_SHARE = HistorySettings().share
_LONGEST = math.ceil(SHOWN / _SHARE)  # n: the interactions that the two windows are cut from
_FEWEST = 4
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
    folder = prepare(job)
    if "spark" in vars(job) and before is None:
        job.spark.stop()  # its JVM would share the processors with what is measured
    return folder
