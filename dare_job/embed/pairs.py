"""The bipartite graph that vectors are learned from: who met what, as integer pairs."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job import files
from dare_job.files import AnyPath


@dataclass(frozen=True)
class Pairs:
    """U users, I items, P distinct pairs, sorted by user and item.

    users, items  (U,), (I,) ids in ascending order
    user, item    (P,) int64 places in them
    last          (P,) bool: the user's latest interaction (ties: the greatest item id)
    """

    users: pa.Array
    items: pa.Array
    user: np.ndarray
    item: np.ndarray
    last: np.ndarray

    def without(self, dropped: np.ndarray) -> "Pairs":
        """The same users and items with fewer pairs. ``dropped``: places (D,)."""
        kept = np.ones(len(self.user), dtype=bool)
        kept[dropped] = False
        return replace(self, user=self.user[kept], item=self.item[kept], last=self.last[kept])


def read(path: AnyPath, before: int) -> Pairs:
    """Pairs of an INTERACTIONS table with a timestamp before ``before`` (seconds since 1970)."""
    table = files.dataset(path, exclude_invalid_files=False).to_table(
        columns=["user_id", "item_id", "timestamp"], filter=pc.field("timestamp") < before)
    users, user = _codes(table["user_id"])
    items, item = _codes(table["item_id"])
    order = np.lexsort((item, table["timestamp"].to_numpy(), user))
    latest = np.zeros(len(user), dtype=bool)
    if len(order):
        latest[order[np.append(np.flatnonzero(np.diff(user[order])), len(order) - 1)]] = True
    packed, place = np.unique(user * max(len(items), 1) + item, return_inverse=True)
    last = np.zeros(len(packed), dtype=bool)
    last[place[latest]] = True
    return Pairs(users, items, *np.divmod(packed, max(len(items), 1)), last)


def held_out(pairs: Pairs, seed: int, most: int = 1000, least: int = 5) -> np.ndarray:
    """Places (D,) of the last pair of up to ``most`` users with at least ``least`` pairs each.

    No item loses its only pair.
    """
    degree = np.bincount(pairs.user, minlength=len(pairs.users))
    chosen = np.flatnonzero(pairs.last & (degree[pairs.user] >= least))
    if len(chosen) > most:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, most, replace=False))
    rest = np.bincount(pairs.item, minlength=len(pairs.items))
    rest -= np.bincount(pairs.item[chosen], minlength=len(pairs.items))
    return chosen[rest[pairs.item[chosen]] > 0]


def _codes(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """Distinct values in ascending order (D,), and each row's place in them (n,) int64."""
    coded = column.combine_chunks().dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return coded.dictionary.take(pa.array(order)), rank[coded.indices.to_numpy()]
