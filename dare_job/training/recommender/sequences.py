"""Item sequences of users in time order, split into training, validation and test parts.

Two inputs are supported. A folder with ``sequential_train|valid|test.txt[.gz]`` has one line per user: its
name and the numbers of its items, which start at 1 while the names in the id file start at 0 (AtSpeed
publishes Amazon Beauty in this form). Parquet ``interactions`` (user_id, item_id, timestamp) are split 8:1:1
at two points in time.

``interactions`` are read like the job's (``data/readers``), but without Spark: columns may have different
types in different files, ids may be numbers, times are seconds or timestamps. Rows without a user, an item or
a time, rows with a rating that is not a number, and items without an id are left out.
"""

import gzip
import logging
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.data.readers.checks import LATEST_S
from dare_job.data.readers.parquet import parquet_files, table_path
from dare_job.errors import ConfigError, DataError, describe
from dare_job.recommend.item_ids import ItemIds

_NEEDED = ("user_id", "item_id", "timestamp")
_SHARES = (0.8, 0.9)  # of the interactions, in time order, that end a part
_MOST_WITHOUT_ID = 0.5  # share of the interactions with items that have no id
_LOG = logging.getLogger("dare_job")


def read_interactions(files: Iterable[Path]) -> tuple[pd.DataFrame, int]:
    """Read Parquet interactions: user and item (text), time (seconds), rating (NaN: none).

    Also returns the number of invalid rows, which are left out.

    Raises
    ------
    DataError
        A file cannot be read or lacks a column.
    """
    parts = [_file(path) for path in files]
    whole = pd.concat(parts, ignore_index=True)
    complete = whole["user"].notna() & whole["item"].notna() & whole["time"].between(0, LATEST_S)
    valid = whole[complete & ~whole["wrong_rating"]].drop(columns="wrong_rating")
    return valid.reset_index(drop=True), len(whole) - len(valid)


def _file(path: Path) -> pd.DataFrame:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if missing := [name for name in _NEEDED if name not in names]:
                raise DataError(f"{path}: column {missing[0]} is missing")
            table = file.read(columns=[*_NEEDED, *(["rating"] if "rating" in names else [])])
            column = table["rating"] if "rating" in names else pa.nulls(len(table), pa.float64())
            rating = _numbers(column)
            return pd.DataFrame({
                "user": _text(table["user_id"]), "item": _text(table["item_id"]),
                "time": _seconds(table["timestamp"]), "rating": rating,
                "wrong_rating": column.is_valid().to_numpy(zero_copy_only=False) & ~np.isfinite(rating)})
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {describe(error)}") from error


def _text(column: pa.ChunkedArray) -> pd.Series:
    """Ids as text, or None; a whole number stored as a float is written without decimals."""
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        number = _numbers(column)
        whole = np.isfinite(number) & (number == np.floor(number))
        texts = [str(int(value)) if valid else None for value, valid in zip(number, whole, strict=True)]
        return pd.Series(texts, dtype=object)
    text = column.cast("string").to_pandas()
    return text.where(text.notna() & text.str.strip().ne(""), None)


def _seconds(column: pa.ChunkedArray) -> np.ndarray:
    """Times as float64 seconds, NaN if invalid."""
    if not pa.types.is_timestamp(column.type):
        return np.floor(_numbers(column))
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
    return np.floor(_numbers(column.cast("int64")) / per_second)


def _numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Values as float64, NaN if invalid."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return np.asarray(column.cast("float64", safe=False).fill_null(np.nan))
    return pd.to_numeric(pd.Series(column.to_pylist(), dtype=object), errors="coerce").to_numpy(np.float64)


@dataclass(frozen=True)
class Sequences:
    """For each of U users the rows of its items (int32, oldest first) in each part; a part may be empty.

    Attributes
    ----------
    counts
        Number of Parquet interactions, and of those left out by reason.
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
    table = path if path.is_file() else table_path(path, "interactions") if path.is_dir() else None
    if table is None:
        raise ConfigError(f"--data {path}: found neither sequential_train.txt nor Parquet interactions")
    return _from_parquet(table, ids, min_rating)


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


def _from_parquet(path: Path, ids: ItemIds, min_rating: float | None) -> Sequences:
    _LOG.info("reading the interactions of %s", path)
    table, invalid = read_interactions(parquet_files(path))
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
    if len(unknown) > _MOST_WITHOUT_ID * len(liked):
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
