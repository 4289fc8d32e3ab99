"""Rows in, results out: the engine's batches, with every way in which a row can fail kept to that row."""

import logging
from collections.abc import Iterator

from dare_job import errors
from dare_job.decode import Engine, Request, Result
from dare_job.errors import DareJobError, InfrastructureError, RowError
from dare_job.spark import loading
from dare_job.spark.loading import Task
from pools.errors import PoolError

_LOG = logging.getLogger("dare_job")


def decode(rows: Iterator[dict], task: Task) -> Iterator[tuple[dict, Result | str]]:
    """Every row with its result, or with the reason why there is none, in the order of finishing.

    An exception in a whole batch decodes the rows that the engine had taken one by one: only those that fail
    alone are lost, and the others go on in batches. Raises InfrastructureError where no engine can be made,
    or it fails before it asks for a row: no row is to blame, and a second try would end alike.
    """
    feed = _Feed(rows, task)
    while feed.more():
        engine, asked = _engine(task), feed.asked
        try:
            for result in engine.run(feed):
                yield from feed.failed()
                yield feed.taken(result.id), result
        except Exception as error:
            stop_if_fatal(error)
            if feed.asked == asked:
                raise _unusable(error) from error
            _LOG.warning("a batch failed, its rows are decoded one by one: %s", describe(error))
            yield from _one_by_one(feed.under_way(), task)
        yield from feed.failed()


def _one_by_one(under_way: list[tuple[dict, Request]], task: Task) -> Iterator[tuple[dict, Result | str]]:
    if not under_way:
        return
    engine = _engine(task, batch_size=1)
    for row, request in under_way:
        try:
            outcome = next(iter(engine.run([request])))
        except Exception as error:
            stop_if_fatal(error)
            outcome = describe(error)
        yield row, outcome


def _engine(task: Task, **settings) -> Engine:
    try:
        return loading.engine(task, **settings)
    except Exception as error:
        stop_if_fatal(error)
        raise _unusable(error) from error


def _unusable(error: Exception) -> InfrastructureError:
    return InfrastructureError(f"no row can be decoded, the engine does not start: {describe(error)}. Where "
                               "memory is short, lower decode.batch_size, or the tasks at once on a machine; "
                               "`dare-job check` tries the model alone")


class _Feed:
    """Turns rows into requests as the engine asks for them, and remembers which are under way.

    asked  rows asked for so far
    """

    def __init__(self, rows: Iterator[dict], task: Task):
        self._rows, self._task = rows, task
        self._next: dict | None = None
        self._requests: dict[str, tuple[dict, Request]] = {}
        self._failed: list[tuple[dict, str]] = []
        self.asked = 0

    def more(self) -> bool:
        """True where a row is left to be asked for."""
        if self._next is None:
            self._next = next(self._rows, None)
        return self._next is not None

    def __iter__(self) -> Iterator[Request]:
        while self.more():
            row, self._next = self._next, None
            self.asked += 1
            reason = row["error"]
            if reason is None:
                try:
                    request = loading.request(row, self._task)
                except Exception as error:
                    stop_if_fatal(error)
                    reason = describe(error)
            if reason is not None:
                self._failed.append((row, reason))
                continue
            self._requests[request.id] = (row, request)
            yield request

    def taken(self, request_id: str) -> dict:
        return self._requests.pop(request_id)[0]

    def failed(self) -> list[tuple[dict, str]]:
        """Rows that could not become requests, each given once."""
        failed, self._failed = self._failed, []
        return failed

    def under_way(self) -> list[tuple[dict, Request]]:
        """Requests without a result, each given once."""
        under_way, self._requests = list(self._requests.values()), {}
        return under_way


def stop_if_fatal(error: Exception) -> None:
    """Raise again, as one of the project's errors, what would fail every row alike."""
    if isinstance(error, PoolError):
        raise errors.PoolError(str(error)) from error
    if isinstance(error, DareJobError) and not isinstance(error, RowError):
        raise error


def describe(error: Exception) -> str:
    """One line for a row's ``error`` column."""
    first = str(error).strip().splitlines()
    if isinstance(error, RowError):
        return str(error)
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
