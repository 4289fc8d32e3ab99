"""The items that can be recommended, as leaves of a trie: exclusions and popularity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.trie import NONE, Trie
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender

INTERACTED, DUPLICATES = "interacted", "duplicates"


class Recommendations(NamedTuple):
    """Recommended items, best first, and the score of each; None where no score was computed."""

    items: list[str]
    scores: list[float | None]


@dataclass(frozen=True)
class Catalogue:
    """The items that can be recommended.

    Attributes
    ----------
    trie
        Of their ids.
    counts : float64 (N,)
        Interactions with each row of ``ids``.
    owners
        Item rows of each leaf, by descending popularity; ties in file order.
    popular : int64 (N,)
        All rows in that order.
    """

    ids: ItemIds
    trie: Trie
    counts: np.ndarray
    owners: tuple[tuple[int, ...], ...]
    popular: np.ndarray

    @classmethod
    def build(cls, ids: ItemIds, counts: np.ndarray) -> "Catalogue":
        """Build the trie of the ids and rank items by counts float64 (N,)."""
        trie = Trie.from_codes(ids.codes)
        popular = np.lexsort((np.arange(len(counts)), -counts))
        owners: list[list[int]] = [[] for _ in range(trie.leaves)]
        for row in popular.tolist():
            owners[trie.rows[row]].append(row)
        return cls(ids, trie, counts, tuple(map(tuple, owners)), popular)

    def rows(self, history: Sequence[str]) -> list[int]:
        """Return the rows of the history's items that have an id, in order."""
        return [row for item in history if (row := self.ids.rows.get(item)) is not None]

    def query(self, recommender: Recommender, history: Sequence[int], exclude: Sequence[str],
              drafter: Recommender | None = None, name: str = "", other_rows: Sequence[int] = ()) -> Query:
        """Build the search query of a user.

        A leaf is banned if all of its items are excluded.

        Parameters
        ----------
        history
            Item rows, oldest first, that the prompt is made of.
        exclude
            Values of recommend.exclude.
        drafter
            Draft recommender, whose prompt is added.
        name
            Identifies the user's random stream.
        other_rows
            Further items that the user interacted with, which the prompt leaves out.
        """
        return Query(recommender.prompt(history), self.trie.rows[np.asarray(history, np.int64)].tolist(),
                     self._excluded_leaves(_excluded([*history, *other_rows], exclude)),
                     drafter.prompt(history) if drafter else (), name)

    def top_items(self, leaves: Sequence[int], scores: Sequence[float], rows: Sequence[int],
                  exclude: Sequence[str], k: int) -> Recommendations:
        """Map ranked leaves to the first k items: all items of a leaf by popularity, or one of them.

        There are k items if ``max_items`` is at least k, since every leaf that is not banned has an item.

        Parameters
        ----------
        rows
            All items that the user interacted with.
        """
        excluded, items, item_scores = _excluded(rows, exclude), [], []
        for leaf, score in zip(leaves, scores, strict=True):
            if leaf == NONE:
                break
            owners = [row for row in self.owners[leaf] if row not in excluded]
            for row in owners[:1] if DUPLICATES in exclude else owners:
                items.append(self.ids.items[row])
                item_scores.append(float(score))
        return Recommendations(items[:k], item_scores[:k])

    def by_popularity(self, exclude: Sequence[str], k: int,
                      other_rows: Sequence[int] = ()) -> Recommendations:
        """Recommend the most popular items to a user without history, who interacted with ``other_rows``."""
        excluded = _excluded(other_rows, exclude)
        rows = [row for row in self.popular.tolist() if row not in excluded]
        if DUPLICATES in exclude:
            _, firsts = np.unique(self.trie.rows[rows], return_index=True)
            rows = [rows[place] for place in sorted(firsts)]
        return Recommendations([self.ids.items[row] for row in rows[:k]], [None] * min(k, len(rows)))

    def max_items(self, exclude: Sequence[str], rows: Sequence[int] = ()) -> int:
        """Return the maximum number of items to recommend to a user who interacted with ``rows``."""
        excluded = _excluded(rows, exclude)
        if DUPLICATES in exclude:
            return self.trie.leaves - len(self._excluded_leaves(excluded))
        return len(self.ids.items) - len(excluded)

    def _excluded_leaves(self, excluded: set[int]) -> list[int]:
        """Return the leaves whose items are all excluded."""
        leaves = sorted({int(self.trie.rows[row]) for row in excluded})
        return [leaf for leaf in leaves if excluded.issuperset(self.owners[leaf])]


def _excluded(rows: Sequence[int], exclude: Sequence[str]) -> set[int]:
    """Return the rows that must not be recommended to a user who interacted with ``rows``."""
    return set(rows) if INTERACTED in exclude else set()
