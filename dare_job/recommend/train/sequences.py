"""What users took, in time order and in three parts: to learn from, to stop by, and to be tested on.

Read are a folder with ``sequential_train|valid|test.txt[.gz]`` (a line a user: its name and the numbers of
its items, which count from 1 where the id file's names count from 0; AtSpeed publishes Amazon Beauty so), and
Parquet ``interactions`` of the job (user_id, item_id, timestamp), cut at two points of time into 8:1:1.
Broken rows of these, and items without an id, are left out, as the job leaves them out.
"""

import gzip
import logging
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from dare_job.data.readers.parquet import parquet_files, table_path
from dare_job.errors import ConfigError, DataError, describe
from dare_job.recommend.ids.item_ids import ItemIds
from dare_job.recommend.train import interactions

PARTS = ("train", "valid", "test")
GIVEN, LEAVE_ONE_OUT = "given", "leave-one-out"
_SHARES = (0.8, 0.9)  # of the interactions, in time order, that end a part
_MOST_WITHOUT_ID = 0.5  # share of the interactions with items that have no id
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Sequences:
    """Of each of U users the rows of its items (int32, oldest first) in each part, which may be empty.

    counts  of Parquet interactions, and of those that were left out by why
    """

    users: tuple[str, ...]
    train: tuple[np.ndarray, ...]
    valid: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    counts: dict[str, int] = field(default_factory=dict)

    def leave_one_out(self) -> "Sequences":
        """The same items cut anew: each user's last one is for the test, the one before for validation.

        Users with fewer than three items are learned from alone.
        """
        whole = [np.concatenate(parts) for parts in zip(self.train, self.valid, self.test, strict=True)]
        empty = np.zeros(0, np.int32)
        cut = [(row[:-2], row[-2:-1], row[-1:]) if len(row) >= 3 else (row, empty, empty) for row in whole]
        return Sequences(self.users, *(tuple(part) for part in zip(*cut, strict=True)), self.counts)

    def tests(self, part: str = "test") -> list[tuple[np.ndarray, np.ndarray]]:
        """(history, targets) of the users with items in a part: all that comes before, and what is in it."""
        before = zip(self.train, self.valid, strict=True) if part == "test" else zip(self.train, strict=True)
        return [(np.concatenate(history), targets)
                for history, targets in zip(before, getattr(self, part), strict=True) if len(targets)]

    def popularity(self, items: int) -> np.ndarray:
        """Times that each of N items was taken in the part to learn from, int64 (N)."""
        return np.bincount(np.concatenate(self.train), minlength=items)


@dataclass(frozen=True)
class Source:
    """What a command reads sequences from.

    path        a folder, or a Parquet file
    split       given: by the files, or by time; leave-one-out: cut anew
    first_item  the number that text files give the first item
    min_rating  Parquet interactions rated below were not taken (``history.min_rating`` of the job); those
                without a rating were. None: all were
    """

    path: Path
    split: str = GIVEN
    first_item: int = 1
    min_rating: float | None = None

    def read(self, ids: ItemIds) -> Sequences:
        """Raises ConfigError for an unknown split, or where nothing is there, DataError for bad files."""
        if self.split not in (GIVEN, LEAVE_ONE_OUT):
            raise ConfigError(f"--split {self.split!r}: choose given (by the files, or by time) or "
                              "leave-one-out")
        found = read(self.path, ids, self.first_item, self.min_rating)
        return found if self.split == GIVEN else found.leave_one_out()

    def told(self, found: Sequences) -> dict:
        """What a command's JSON says of them."""
        return {"split": self.split, "min_rating": self.min_rating, "counts": found.counts}


def read(path: str | Path, ids: ItemIds, first_item: int = 1, min_rating: float | None = None) -> Sequences:
    """As ``Source.read``, by the files or by time. A number of a text file that is no item is a DataError:
    the numbers may count from elsewhere.
    """
    path = Path(path)
    if _text_file(path, "train"):
        if min_rating is not None:
            raise ConfigError(f"--min-rating: the sequences of {path} have no ratings; leave it out")
        return _from_text(path, ids, first_item)
    table = path if path.is_file() else table_path(path, "interactions") if path.is_dir() else None
    if table is None:
        raise ConfigError(f"--data {path}: neither sequential_train.txt nor Parquet interactions are there")
    return _from_parquet(table, ids, min_rating)


def _text_file(folder: Path, part: str) -> Path | None:
    names = (f"sequential_{part}.txt", f"sequential_{part}.txt.gz")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _from_text(folder: Path, ids: ItemIds, first_item: int) -> Sequences:
    parts = {part: _lines(folder, part, ids, first_item) for part in PARTS}
    users = tuple(dict.fromkeys(user for part in PARTS for user in parts[part]))
    empty = np.zeros(0, np.int32)
    return _learnable(Sequences(users, *(tuple(parts[part].get(user, empty) for user in users)
                                         for part in PARTS)), folder)


def _lines(folder: Path, part: str, ids: ItemIds, first_item: int) -> dict[str, np.ndarray]:
    path, found = _text_file(folder, part), {}
    if path is None:
        raise DataError(f"--data {folder}: sequential_{part}.txt is missing")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                user, *items = line.split() or [""]
                rows = _numbered(items, ids, first_item, f"{path}, line {number}")
                if user:
                    found[user] = np.concatenate((found.get(user, np.zeros(0, np.int32)), rows))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {describe(error)}") from error
    return found


def _numbered(items: list[str], ids: ItemIds, first_item: int, where: str) -> np.ndarray:
    try:
        return np.array([ids.rows[str(int(item) - first_item)] for item in items], np.int32)
    except (KeyError, ValueError) as error:
        raise DataError(f"{where}: {error} is no item of the id file; numbers here count from {first_item} "
                        "(--first-item), names there from 0") from None


def _from_parquet(path: Path, ids: ItemIds, min_rating: float | None) -> Sequences:
    _LOG.info("reading the interactions of %s", path)
    table, broken = interactions.read(parquet_files(path))
    liked = table[~(table["rating"] < (-np.inf if min_rating is None else min_rating))]
    known = liked[liked["item"].isin(ids.rows)]
    counts = {"interactions": len(table) + broken, "broken": broken,
              "below_min_rating": len(table) - len(liked), "without_id": len(liked) - len(known)}
    if broken:
        _LOG.warning("%s: left out %d of %d interactions without a user, an item or a time, or with a rating "
                     "that is no number", path, broken, counts["interactions"])
    if len(known) < len(liked):
        _require_known(path, liked, known)
    rows = known["item"].map(ids.rows).to_numpy(np.int32)
    names, owners = np.unique(known["user"].to_numpy().astype(str), return_inverse=True)
    order = np.argsort(known["time"].to_numpy(), kind="stable")
    cuts = [round(share * len(order)) for share in _SHARES]
    parts = [_by_user(owners[part], rows[part], len(names)) for part in np.split(order, cuts)]
    return _learnable(Sequences(tuple(names.tolist()), *parts, counts), path)


def _require_known(path: Path, liked: pd.DataFrame, known: pd.DataFrame) -> None:
    """Says what is left out as its item has no id. Raises DataError where that is most of it."""
    unknown = liked.drop(known.index)
    said = (f"{len(unknown)} of {len(liked)} interactions are with items without an id, such as "
            f"{unknown['item'].iloc[0]!r}")
    if len(unknown) > _MOST_WITHOUT_ID * len(liked):
        raise DataError(f"--data {path}: {said}: are these the ids of another catalogue? dare-job item-ids "
                        "makes ids of all")
    _LOG.warning("%s: %s, and are left out", path, said)


def _by_user(owners: np.ndarray, rows: np.ndarray, users: int) -> tuple[np.ndarray, ...]:
    order = np.argsort(owners, kind="stable")
    borders = np.searchsorted(owners[order], np.arange(1, users))
    return tuple(np.split(rows[order], borders))


def _learnable(found: Sequences, path: Path) -> Sequences:
    if not any(len(row) > 1 for row in found.train):
        raise DataError(f"--data {path}: no user has two items with ids to learn from")
    return found
