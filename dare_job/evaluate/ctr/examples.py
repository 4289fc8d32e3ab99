"""Label rows as arrays: dense ids, attribute codes, earlier clicks of the user, and a split by time."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from dare_job.errors import DataError
from dare_job.evaluate.ctr.source import SPLITS, Source

TRAIN_SHARE, VALID_SHARE = 0.7, 0.1  # of the label rows, by time; the rest is the test
MAX_VALUES = 1000  # an attribute with more values identifies entities, and is left out
_KEYS = {"user": "user_id", "item": "item_id"}


@dataclass(frozen=True)
class Entities:
    """n users or items. Entity ``ids[i]`` has the dense id i + 1; 0 means none.

    Attributes
    ----------
    attributes : int32 (n + 1,)
        By name of the attribute: code of each dense id's value; 0 means no value.
    """

    ids: pd.Index
    attributes: dict[str, np.ndarray]


@dataclass(frozen=True)
class Examples:
    """N label rows in order of time. history: the last L clicks before ``second``, oldest first, 0: none."""

    users: Entities
    items: Entities
    user: np.ndarray  # (N,) int32
    item: np.ndarray  # (N,) int32
    history: np.ndarray  # (N, L) int32
    label: np.ndarray  # (N,) float32
    second: np.ndarray  # (N,) int64, since 1970
    split: np.ndarray  # (N,) int8, index into SPLITS

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Row numbers of each split."""
        return {name: np.flatnonzero(self.split == place) for place, name in enumerate(SPLITS)}

    def of(self, entity: str) -> Entities:
        return self.users if entity == "user" else self.items

    def dense(self, entity: str) -> np.ndarray:
        """(N,) dense ids of the rows' users or items."""
        return self.user if entity == "user" else self.item


def make(source: Source, labels_from: int | pd.Series | None, length: int) -> Examples:
    """Make label rows with histories of L = ``length``. Rows are split by time unless the files have a split.

    Parameters
    ----------
    labels_from
        First second of labels, or one by user_id (others: the earliest); earlier interactions are history
        only. None: labels are the later half, or all rows of split files that belong to a part.

    Raises
    ------
    DataError
        A split has no row, or labels of one kind only.
    """
    rows = source.interactions.sort_values(["timestamp", "user_id", "item_id"], kind="stable")
    users, items = (_entities(source, entity) for entity in _KEYS)
    user, item = users.ids.get_indexer(rows["user_id"]) + 1, items.ids.get_indexer(rows["item_id"]) + 1
    second, label = rows["timestamp"].to_numpy(np.int64), rows["label"].to_numpy(np.float32)
    if labels_from is None:
        labels_from = int(second[0] if "split" in rows else np.quantile(second, 0.5)) if len(rows) else 0
    if isinstance(labels_from, pd.Series):
        since = rows["user_id"].map(labels_from).fillna(labels_from.min()).to_numpy()
    else:
        since = labels_from
    chosen = second >= since
    if "split" in rows:
        chosen &= rows["split"].notna().to_numpy()
    before = _histories(user[chosen], second[chosen], user[label > 0], item[label > 0], second[label > 0],
                        length)
    if "split" in rows:
        split = rows["split"][chosen].map(SPLITS.index).to_numpy(np.int8)
    else:
        split = _by_time(second[chosen])
    examples = Examples(users, items, user[chosen].astype(np.int32), item[chosen].astype(np.int32), before,
                        label[chosen], second[chosen], split)
    _require_both_labels(examples, int(np.min(since)))
    return examples


def _entities(source: Source, entity: str) -> Entities:
    """Entities of the interactions and of the table, in order of id, with their coded attributes."""
    key, table = _KEYS[entity], source.users if entity == "user" else source.items
    ids = pd.Index(sorted({*source.interactions[key], *table[key]}))
    maps = {row_id: dict(pairs) for row_id, pairs in zip(table[key], table["attributes"], strict=True)
            if pairs is not None}
    known = pd.DataFrame([maps.get(row_id, {}) for row_id in ids])
    coded = {name: pd.factorize(known[name], sort=True) for name in known}
    return Entities(ids, {
        str(name): np.concatenate([[0], codes + 1]).astype(np.int32)
        for name, (codes, values) in coded.items() if 2 <= len(values) <= MAX_VALUES})


def _histories(user: np.ndarray, second: np.ndarray, clicker: np.ndarray, clicked: np.ndarray,
               when: np.ndarray, length: int) -> np.ndarray:
    """(N, length) items that the row's user clicked strictly before its second. Clicks are in time order."""
    by_user = np.argsort(clicker, kind="stable")
    clicker, clicked, when = clicker[by_user], clicked[by_user], when[by_user]
    span = 1 + int(max(when.max(initial=0), second.max(initial=0)))  # separates the seconds of users
    end = np.searchsorted(clicker * span + when, user * span + second, "left")
    start = np.searchsorted(clicker, user, "left")
    places = end[:, None] - length + np.arange(length)
    places[places < start[:, None]] = len(clicked)  # the 0 that is appended
    return np.append(clicked, 0)[places].astype(np.int32)


def _by_time(second: np.ndarray) -> np.ndarray:
    """Split by time; rows of one second stay together."""
    if not len(second):
        return np.empty(0, np.int8)
    ordered = np.sort(second)
    valid = ordered[int(TRAIN_SHARE * len(second))]
    test = ordered[int((TRAIN_SHARE + VALID_SHARE) * len(second))]
    return ((second >= valid).astype(np.int8) + (second >= test)).astype(np.int8)


def _require_both_labels(examples: Examples, labels_from: int) -> None:
    for name, rows in examples.rows.items():
        clicks = int(examples.label[rows].sum())
        if not 0 < clicks < len(rows):
            raise DataError(
                f"--data: the {name} part has {len(rows)} rows, {clicks} of them clicks; AUC needs both "
                f"labels in each part. Labels begin at {pd.Timestamp(labels_from, unit='s')} (--labels-from)")
