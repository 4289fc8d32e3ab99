"""Items as leaves of a trie: what users have taken and may not see, lists of leaves as lists of items."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.trie import NONE, Trie
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender

INTERACTED, DUPLICATES = "seen", "duplicates"


class Recommendations(NamedTuple):
    """Items of a list, the best first, and the score of each: float, None where none was computed."""

    items: list[str]
    scores: list[float | None]


@dataclass(frozen=True)
class Catalogue:
    """The items that can be recommended.

    trie      of their ids
    counts    float64 (N,): popularity of each row of ``ids``
    owners    rows of each leaf, the most popular first; equals in the order of the file
    popular   int64 (N,): rows in that order
    """

    ids: ItemIds
    trie: Trie
    counts: np.ndarray
    owners: tuple[tuple[int, ...], ...]
    popular: np.ndarray

    @classmethod
    def of(cls, ids: ItemIds, counts: np.ndarray) -> "Catalogue":
        trie = Trie.from_codes(ids.codes)
        popular = np.lexsort((np.arange(len(counts)), -counts))
        owners: list[list[int]] = [[] for _ in range(trie.leaves)]
        for row in popular.tolist():
            owners[trie.rows[row]].append(row)
        return cls(ids, trie, counts, tuple(map(tuple, owners)), popular)

    def rows(self, history: Sequence[str]) -> list[int]:
        """Rows of the items of a history that have an id, in its order."""
        return [row for item in history if (row := self.ids.rows.get(item)) is not None]

    def query(self, recommender: Recommender, rows: Sequence[int], exclude: Sequence[str],
              drafter: Recommender | None = None, name: str = "", others: Sequence[int] = ()) -> Query:
        """Of a user's rows, the oldest first; others: that it took, too, and that say nothing of its taste.
        A leaf is banned where all of its items are excluded.
        """
        return Query(
            recommender.prompt(rows),
            self.trie.rows[np.asarray(rows, np.int64)].tolist(),
            self._banned(_excluded([*rows, *others], exclude)),
            drafter.prompt(rows) if drafter else (),
            name,
        )

    def listed(self, leaves: Sequence[int], scores: Sequence[float], rows: Sequence[int],
               exclude: Sequence[str], k: int) -> Recommendations:
        """The first k items of a list of leaves: those of a leaf by popularity, or the first of them alone.
        rows: all that the user took.

        They are k where as many can be listed (``most``): each leaf that is not banned has an item at least.
        """
        seen, found, given = _excluded(rows, exclude), [], []
        for leaf, score in zip(leaves, scores, strict=True):
            if leaf == NONE:
                break
            owners = [row for row in self.owners[leaf] if row not in seen]
            for row in owners[:1] if DUPLICATES in exclude else owners:
                found.append(self.ids.items[row])
                given.append(float(score))
        return Recommendations(found[:k], given[:k])

    def by_popularity(self, exclude: Sequence[str], k: int, others: Sequence[int] = ()) -> Recommendations:
        """For a user without a history, who took ``others``."""
        seen = _excluded(others, exclude)
        rows = [row for row in self.popular.tolist() if row not in seen]
        if DUPLICATES in exclude:
            first: dict[int, int] = {}
            for row in rows:
                first.setdefault(int(self.trie.rows[row]), row)
            rows = list(first.values())
        return Recommendations([self.ids.items[row] for row in rows[:k]], [None] * min(k, len(rows)))

    def most(self, exclude: Sequence[str], rows: Sequence[int] = ()) -> int:
        """Items of the longest list that a user who has taken these rows can have."""
        seen = _excluded(rows, exclude)
        if DUPLICATES in exclude:
            return self.trie.leaves - len(self._banned(seen))
        return len(self.ids.items) - len(seen)

    def _banned(self, seen: set[int]) -> list[int]:
        """Leaves all of whose items are seen."""
        leaves = sorted({int(self.trie.rows[row]) for row in seen})
        return [leaf for leaf in leaves if seen.issuperset(self.owners[leaf])]


def _excluded(rows: Sequence[int], exclude: Sequence[str]) -> set[int]:
    """Rows that no list of a user who has taken ``rows`` may hold."""
    return set(rows) if INTERACTED in exclude else set()
