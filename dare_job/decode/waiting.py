"""Requests that wait for a slot: some are taken ahead, so that texts of a length run together.

A forward reads as many columns as its longest row has, and a night ends when its last row does: of the requests
taken ahead those with the longest texts start first. All of them start before more are taken, so none waits for
longer than that.
"""

from collections.abc import Callable, Iterable

from dare_job.decode.admission import Admission
from dare_job.decode.request import Request, Result, failed
from dare_job.errors import RowError

_BATCHES, _LEAST = 4, 32  # taken ahead: so many batches, and so many requests at least


class Waiting:
    """A run's queue of requests, checked as they are taken ahead."""

    def __init__(self, requests: Iterable[Request], slots: int, admit: Callable[[Request], Admission],
                 taken: Callable[[list[Admission]], None]):
        """admit may raise RowError; ``taken`` is told of each lot that was taken ahead."""
        self._queue, self._admit, self._told = iter(requests), admit, taken
        self._ahead = max(_BATCHES * slots, _LEAST)
        self._ready: list[Admission] = []  # the longest last
        self._failed: list[Result] = []

    def take(self, count: int) -> list[Admission]:
        """The longest of the requests that wait, ``count`` of them while there are so many."""
        rows: list[Admission] = []
        while len(rows) < count and (self._ready or self._more()):
            rows.append(self._ready.pop())
        return rows

    def failed(self) -> list[Result]:
        """Requests that cannot start, each given once."""
        failed, self._failed = self._failed, []
        return failed

    def _more(self) -> bool:
        """Take requests ahead; False where none was left."""
        while len(self._ready) < self._ahead and (request := next(self._queue, None)) is not None:
            try:
                self._ready.append(self._admit(request))
            except RowError as error:
                self._failed.append(failed(request, str(error)))
        self._ready.sort(key=_expected)
        if self._ready:
            self._told(self._ready)
        return bool(self._ready)


def _expected(row: Admission) -> int:
    """Length of a row's text: as it was; where that is not known, as it may become."""
    return len(row.request.prompt_ids) + len(row.old) if len(row.old) else row.longest
