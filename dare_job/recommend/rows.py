"""Users in, rows of CANDIDATES out: batches, with every way in which a user can fail kept to that user."""

import logging
from collections.abc import Iterator, Mapping, Sequence

from dare_job.decode.model import memory
from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.search import TopK
from dare_job.errors import describe
from dare_job.generate import engines, hangs
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.vocabulary import Recommender

_LOG = logging.getLogger("dare_job")
MODEL, POPULARITY = "model", "popularity"  # who made a list
Known = tuple[str, list[int], list[int]]  # user_id, rows of the history and of what else was taken
_NO_HANGS: Mapping[str, Sequence[str]] = {}


class BatchRecommender:
    """What makes lists in one worker. ``batch_size`` falls where memory is short, and stays there unless one
    user alone was to blame.
    """

    def __init__(self, search: TopK, catalogue: Catalogue, recommender: Recommender,
                 drafter: Recommender | None, exclude: Sequence[str], k: int, batch_size: int):
        self.search, self.catalogue = search, catalogue
        self.recommender, self.drafter = recommender, drafter
        self.exclude, self.k, self.batch_size = tuple(exclude), k, batch_size
        self._under_way: list[str] = []

    @property
    def clock_s(self) -> float:
        """Of the search's forwards, for a watchdog."""
        return self.search.clock_s

    def active_ids(self) -> list[str]:
        """Users of the batch that is searched for, or was last."""
        return self._under_way

    def rows(self, users: Sequence[tuple[str, Sequence[str], Sequence[str]]],
             hung: Mapping[str, Sequence[str]] = _NO_HANGS) -> Iterator[dict]:
        """(user_id, item ids of the history, the oldest first, those taken beside it) -> k rows a user, or
        one with ``error``; without run_id.

        Users with prompts of like length share batches. A user without an item that has an id gets the most
        popular items, one for whom fewer than k are left an error. Users over whom a worker has ended come
        alone and last; ``hung`` says why each time, and over whom one ended alone is given up. Raises
        DeviceError where the device failed.
        """
        known, alone = [], []
        for user, *taken in users:
            rows, others = map(self.catalogue.rows, taken)
            if reason := self._too_few([*rows, *others]) or hangs.give_up_reason(hung.get(user, ())):
                yield _row(user, error=reason)
            elif rows:
                (alone if user in hung else known).append((user, rows, others))
            else:
                popular = self.catalogue.by_popularity(self.exclude, self.k, others)
                yield from _rows(user, popular, POPULARITY, 0, 0)
        known.sort(key=lambda one: len(one[1]))
        at, before = 0, self.batch_size
        while at < len(known):
            batch = known[at:at + self.batch_size]
            found = self._batch(batch, before)
            if found is None:
                self.batch_size = max(1, len(batch) // 2)
                _LOG.warning("out of memory with %d users at once: %d from here on", len(batch),
                             self.batch_size)
                memory.release(self.search.node_scores.target)
                continue
            yield from found
            at += len(batch)
        for one in alone:
            yield from self._batch([one], before)

    def _too_few(self, rows: list[int]) -> str | None:
        """Why a user who has taken these rows can have no whole list."""
        left = self.catalogue.most(self.exclude, rows)
        return None if left >= self.k else (
            f"fewer than {self.k} items are left, {left}, without what recommend.exclude leaves out: a "
            "smaller recommend.k, or exclude less")

    def _batch(self, users: list[Known], before: int) -> list[dict] | None:
        """None: memory is short, and there is more than one user. before: ``batch_size`` once it is one user
        whom memory is too short for.
        """
        self._under_way = [user for user, *_ in users]
        try:
            return self._found(users)
        except Exception as error:
            engines.raise_if_device_failed(error, self._under_way)
            short = memory.is_out_of_memory(error)
            if short and len(users) > 1:
                return None
            if len(users) == 1:
                self.batch_size = before if short else self.batch_size
                user = users[0][0]
                _LOG.warning("user %s gets no list: %s", user, describe(error))
                return [_row(user, error=describe(error))]
            _LOG.warning("a batch failed, its users are served one by one: %s", describe(error))
        return [row for user in users for row in self._batch([user], before)]

    def _found(self, users: list[Known]) -> list[dict]:
        queries: list[Query] = [
            self.catalogue.query(self.recommender, rows, self.exclude, self.drafter, user, others)
            for user, rows, others in users]
        lists, written = self.search.search(queries), []
        for at, (user, rows, others) in enumerate(users):
            listed = self.catalogue.listed(lists.leaves[at].tolist(), lists.scores[at].tolist(),
                                           [*rows, *others], self.exclude, self.k)
            written += _rows(user, listed, MODEL, int(lists.forwards[at]), int(lists.accepted[at]))
        return written


def _rows(user: str, listed, source: str, forwards: int, accepted: int) -> list[dict]:
    return [_row(user, rank, item, score, source, forwards, accepted)
            for rank, (item, score) in enumerate(zip(*listed, strict=True), 1)]


def _row(user: str, rank: int | None = None, item: str | None = None, score: float | None = None,
         source: str | None = None, forwards: int = 0, accepted: int = 0, error: str | None = None) -> dict:
    return {"user_id": user, "rank": rank, "item_id": item, "score": score, "source": source,
            "target_forwards": forwards, "accepted_steps": accepted, "error": error}
