"""Recommends to batches of users: users in, rows of CANDIDATES out. A failure affects only its own user."""

import logging
from collections.abc import Iterator, Mapping, Sequence

from dare_job.decode.model import failures
from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.search import TopK
from dare_job.errors import describe
from dare_job.generate import engines, hangs
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.vocabulary import Recommender

_LOG = logging.getLogger("dare_job")
MODEL, POPULARITY = "model", "popularity"  # source of a user's recommendations
User = tuple[str, list[int], list[int]]  # user_id, item rows of the history, rows of other interactions


class BatchRecommender:
    """Recommends to users in one worker.

    ``batch_size`` is halved when memory runs out, and stays there unless a single user was the cause.
    """

    def __init__(self, search: TopK, catalogue: Catalogue, recommender: Recommender,
                 drafter: Recommender | None, exclude: Sequence[str], k: int, batch_size: int):
        self.search, self.catalogue = search, catalogue
        self.recommender, self.drafter = recommender, drafter
        self.exclude, self.k, self.batch_size = tuple(exclude), k, batch_size
        self._active: list[str] = []

    @property
    def clock_s(self) -> float:
        """Seconds of the search's forward passes, for a watchdog."""
        return self.search.clock_s

    def active_ids(self) -> list[str]:
        """Return the users of the current or last batch."""
        return self._active

    def rows(self, users: Sequence[tuple[str, Sequence[str], Sequence[str]]],
             hung: Mapping[str, Sequence[str]]) -> Iterator[dict]:
        """Yield k rows per user, or one with ``error``; without run_id.

        Users with prompts of similar length share batches. A user without an item that has an id gets the
        most popular items; a user for whom fewer than k items are left gets an error. Users during whose
        batch a worker ended run alone and last.

        Parameters
        ----------
        users : (user_id, item ids of the history, oldest first, other items the user interacted with)
        hung
            Reasons per user whose batch ended a worker; a user who ended one alone is given up.

        Raises
        ------
        DeviceError
            The device failed.
        """
        waiting, isolated = [], []
        for user, *interacted in users:
            rows, others = map(self.catalogue.rows, interacted)
            if reason := self._too_few([*rows, *others]) or hangs.give_up_reason(hung.get(user, ())):
                yield _row(user, error=reason)
            elif rows:
                (isolated if user in hung else waiting).append((user, rows, others))
            else:
                popular = self.catalogue.by_popularity(self.exclude, self.k, others)
                yield from _rows(user, popular, POPULARITY, 0, 0)
        waiting.sort(key=lambda row: len(row[1]))
        at, initial_batch_size = 0, self.batch_size
        while at < len(waiting):
            batch = waiting[at:at + self.batch_size]
            batch_rows = self._batch(batch, initial_batch_size)
            if batch_rows is None:
                self.batch_size = failures.halved(len(batch), "recommend.batch_size")
                failures.release(self.search.node_scores.target)
                continue
            yield from batch_rows
            at += len(batch)
        for row in isolated:
            yield from self._batch([row], initial_batch_size)

    def _too_few(self, rows: list[int]) -> str | None:
        """Return why a user who interacted with these rows cannot have k items, or None."""
        left = self.catalogue.max_items(self.exclude, rows)
        if left >= self.k:
            return None
        return (f"fewer than {self.k} items are left, {left}, after recommend.exclude: lower recommend.k, or "
                "exclude less")

    def _batch(self, users: list[User], initial_batch_size: int) -> list[dict] | None:
        """Recommend to one batch; None if memory ran out with more than one user.

        The batch size becomes ``initial_batch_size`` again if memory ran out for a single user.
        """
        self._active = [user for user, *_ in users]
        try:
            return self._search(users)
        except Exception as error:
            engines.raise_if_device_failed(error, self._active)
            short = failures.is_out_of_memory(error)
            if short and len(users) > 1:
                return None
            if len(users) == 1:
                self.batch_size = initial_batch_size if short else self.batch_size
                user = users[0][0]
                _LOG.warning("user %s gets no recommendations: %s", user, describe(error))
                return [_row(user, error=describe(error))]
            _LOG.warning("a batch failed, so its users are retried one by one: %s", describe(error))
        return [row for user in users for row in self._batch([user], initial_batch_size)]

    def _search(self, users: list[User]) -> list[dict]:
        queries: list[Query] = [
            self.catalogue.query(self.recommender, rows, self.exclude, self.drafter, user, others)
            for user, rows, others in users]
        result, rows_out = self.search.search(queries), []
        for at, (user, rows, others) in enumerate(users):
            recommendations = self.catalogue.top_items(result.leaves[at].tolist(), result.scores[at].tolist(),
                                                       [*rows, *others], self.exclude, self.k)
            rows_out += _rows(user, recommendations, MODEL, int(result.forwards[at]),
                              int(result.accepted[at]))
        return rows_out


def _rows(user: str, recommendations, source: str, forwards: int, accepted: int) -> list[dict]:
    return [_row(user, rank, item, score, source, forwards, accepted)
            for rank, (item, score) in enumerate(zip(*recommendations, strict=True), 1)]


def _row(user: str, rank: int | None = None, item: str | None = None, score: float | None = None,
         source: str | None = None, forwards: int = 0, accepted: int = 0, error: str | None = None) -> dict:
    return {"user_id": user, "rank": rank, "item_id": item, "score": score, "source": source,
            "target_forwards": forwards, "accepted_steps": accepted, "error": error}
