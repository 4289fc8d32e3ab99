"""Item sequences of users in time order, split into training, validation and test parts.

Two inputs are supported. A folder with ``sequential_train|valid|test.txt[.gz]`` has one line per user: its
name and the numbers of its items, which start at 1 while the names in the id file start at 0 (AtSpeed
publishes Amazon Beauty in this form). The interactions of any input of the job (``data/input``) are split
8:1:1 at two points in time. Rows without a user, an item or a time, rows with a rating that is not a number,
and items without an id are left out.
"""

import gzip
import logging
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.config.settings import InputSettings
from dare_job.data.input import sample
from dare_job.data.input.source import detected, opened
from dare_job.errors import ConfigError, DataError, describe
from dare_job.recommend.item_ids import ItemIds
from dare_job.schemas import INTERACTIONS

_SHARES = (0.8, 0.9)  # of the interactions, in time order, that end a part
_MAX_SHARE_WITHOUT_ID = 0.5  # share of the interactions with items that have no id
_LOG = logging.getLogger("dare_job")


def read_interactions(path: Path) -> tuple[pd.DataFrame, int]:
    """Read interactions: user and item (text), time (seconds), rating (NaN: none).

    Also returns the number of invalid rows, which are left out.

    Raises
    ------
    DataError
        A file cannot be read or lacks a column.
    """
    kept, rows = [], 0
    with tempfile.TemporaryDirectory() as temporary, opened(InputSettings(path=str(path)),
                                                            Path(temporary)) as source:
        for batch in sample.batches(source.tables["interactions"]):
            rows += len(batch)
            kept.append(batch.filter(pc.is_null(batch["problem"])).select(INTERACTIONS.names))
    table = pa.Table.from_batches(kept, pa.schema([item.with_nullable(True) for item in INTERACTIONS]))
    return table.rename_columns(["user", "item", "rating", "time"]).to_pandas(), rows - len(table)


@dataclass(frozen=True)
class Sequences:
    """For each of U users the rows of its items (int32, oldest first) in each part; a part may be empty.

    Attributes
    ----------
    counts
        Number of interactions, and of those left out by reason.
    """

    users: tuple[str, ...]
    train: tuple[np.ndarray, ...]
    valid: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    counts: dict[str, int] = field(default_factory=dict)

    def leave_one_out(self) -> "Sequences":
        """Split again: each user's last item is for the test, the one before it for validation.

        Users with fewer than three items are in the training part only.
        """
        whole = [np.concatenate(parts) for parts in zip(self.train, self.valid, self.test, strict=True)]
        empty = np.zeros(0, np.int32)
        split = [(row[:-2], row[-2:-1], row[-1:]) if len(row) >= 3 else (row, empty, empty) for row in whole]
        return Sequences(self.users, *zip(*split, strict=True), self.counts)

    def tests(self, part: str = "test") -> list[tuple[np.ndarray, np.ndarray]]:
        """(history, targets) of the users with items in a part: the items before it, and those in it."""
        before = zip(self.train, self.valid, strict=True) if part == "test" else zip(self.train, strict=True)
        return [(np.concatenate(history), targets)
                for history, targets in zip(before, getattr(self, part), strict=True) if len(targets)]

    def popularity(self, items: int) -> np.ndarray:
        """Number of interactions of each of N items in the training part, int64 (N,)."""
        return np.bincount(np.concatenate(self.train), minlength=items)


def read(path: str | Path, ids: ItemIds, first_item: int = 1, min_rating: float | None = None) -> Sequences:
    """Read sequences, split by the files or by time.

    Raises
    ------
    ConfigError
        ``path`` has no sequences, or ``min_rating`` is given and they have no ratings.
    DataError
        A file is missing or invalid, a number in a text file is not an item (numbering may start elsewhere),
        most interactions have items without an id, or no user has two items to train on.
    """
    path = Path(path)
    if _text_file(path, "train"):
        if min_rating is not None:
            raise ConfigError(f"--min-rating: the sequences of {path} have no ratings; omit the option")
        return _from_text(path, ids, first_item)
    if not path.exists() or detected(path) is None:
        raise ConfigError(f"--data {path}: found neither sequential_train.txt nor interactions")
    return _from_interactions(path, ids, min_rating)


def _text_file(folder: Path, part: str) -> Path | None:
    names = (f"sequential_{part}.txt", f"sequential_{part}.txt.gz")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _from_text(folder: Path, ids: ItemIds, first_item: int) -> Sequences:
    parts = [_lines(folder, part, ids, first_item) for part in ("train", "valid", "test")]
    users = tuple(dict.fromkeys(user for part in parts for user in part))
    empty = np.zeros(0, np.int32)
    return _trainable(Sequences(users, *(tuple(part.get(user, empty) for user in users) for part in parts)),
                      folder)


def _lines(folder: Path, part: str, ids: ItemIds, first_item: int) -> dict[str, np.ndarray]:
    path, by_user = _text_file(folder, part), {}
    if path is None:
        raise DataError(f"--data {folder}: sequential_{part}.txt is missing")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                user, *items = line.split() or [""]
                rows = _numbered(items, ids, first_item, f"{path}, line {number}")
                if user:
                    by_user[user] = np.concatenate((by_user.get(user, np.zeros(0, np.int32)), rows))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {describe(error)}") from error
    return by_user


def _numbered(items: list[str], ids: ItemIds, first_item: int, where: str) -> np.ndarray:
    try:
        return np.array([ids.rows[str(int(item) - first_item)] for item in items], np.int32)
    except (KeyError, ValueError) as error:
        raise DataError(f"{where}: {error} is not an item of the id file; numbers here start at {first_item} "
                        "(--first-item), those of the id file at 0") from None


def _from_interactions(path: Path, ids: ItemIds, min_rating: float | None) -> Sequences:
    _LOG.info("reading the interactions of %s", path)
    table, invalid = read_interactions(path)
    liked = table[~(table["rating"] < (-np.inf if min_rating is None else min_rating))]
    known = liked[liked["item"].isin(ids.rows)]
    counts = {"interactions": len(table) + invalid, "broken": invalid,
              "below_min_rating": len(table) - len(liked), "without_id": len(liked) - len(known)}
    if invalid:
        _LOG.warning("%s: skipped %d of %d interactions without a user, an item or a time, or with a rating "
                     "that is not a number", path, invalid, counts["interactions"])
    if len(known) < len(liked):
        _require_known(path, liked, known)
    rows = known["item"].map(ids.rows).to_numpy(np.int32)
    names, owners = np.unique(known["user"].to_numpy().astype(str), return_inverse=True)
    order = np.argsort(known["time"].to_numpy(), kind="stable")
    ends = [round(share * len(order)) for share in _SHARES]
    parts = [_by_user(owners[part], rows[part], len(names)) for part in np.split(order, ends)]
    return _trainable(Sequences(tuple(names.tolist()), *parts, counts), path)


def _require_known(path: Path, liked: pd.DataFrame, known: pd.DataFrame) -> None:
    """Warn about interactions whose items have no id. Raises DataError if these are most interactions."""
    unknown = liked.drop(known.index)
    message = (f"{len(unknown)} of {len(liked)} interactions are with items without an id, such as "
               f"{unknown['item'].iloc[0]!r}")
    if len(unknown) > _MAX_SHARE_WITHOUT_ID * len(liked):
        raise DataError(f"--data {path}: {message}. If these are items of another catalogue, make ids for "
                        "all items with dare-job recommender item-ids")
    _LOG.warning("%s: %s; they are skipped", path, message)


def _by_user(owners: np.ndarray, rows: np.ndarray, users: int) -> tuple[np.ndarray, ...]:
    order = np.argsort(owners, kind="stable")
    borders = np.searchsorted(owners[order], np.arange(1, users))
    return tuple(np.split(rows[order], borders))


def _trainable(sequences: Sequences, path: Path) -> Sequences:
    if not any(len(row) > 1 for row in sequences.train):
        raise DataError(f"--data {path}: no user has two items with ids to train on")
    return sequences
