"""Decodes rows with an engine and contains failures, so that a failing row affects no other row.

A worker process halves its batch size when it runs out of memory.
"""

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from dare_job import errors
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model import failures
from dare_job.decode.request import Request, Result
from dare_job.errors import DareJobError, InfrastructureError, RowError, describe
from dare_job.generate import engines, hangs, loading
from dare_job.generate.hangs import Watchdog
from dare_job.generate.task import Task
from pools import PoolError

_LOG = logging.getLogger("dare_job")
_sizes: dict[tuple, int] = {}  # batch sizes that differ from decode.batch_size


def batch_size_of(task: Task) -> int:
    """This worker's current batch size."""
    return _sizes.get(_key(task), task.config.decode.batch_size)


def _key(task: Task) -> tuple:
    return task.run_id, task.folder, task.model, task.config.decode.batch_size


def decode_rows(rows: Iterator[dict | None], task: Task, watchdog: Watchdog,
                hung: Mapping[str, Sequence[str]]) -> Iterator[tuple[dict, Result | str]]:
    """Yield every row with its result, or with the reason why it has none, in order of completion.

    After running out of memory, the engine's rows are decoded again with half the batch size. After any other
    exception, the rows of the batch are decoded one by one, so that only rows that fail alone are lost. Rows
    that timed out or hung a worker before are decoded one by one at the end.

    Parameters
    ----------
    rows
        None among them: the next one is taken when those before it are finished.
    hung
        Reasons of earlier hangs by row id; a row that hung alone is given up.

    Raises
    ------
    DeviceError
        The device failed.
    InfrastructureError
        The engine cannot be created or fails before it takes a row.
    """
    queue, size = _RequestQueue(rows, task, watchdog, hung), batch_size_of(task)
    while queue.has_next():
        current = batch_size_of(task)
        engine, consumed, short, reason = _engine(task, current), queue.consumed, False, None
        try:
            for result in watchdog.watch(engine, engine.run(queue)):
                yield from queue.pop_failed()
                if result.finish_reason == "timeout":
                    queue.defer(result.id)
                else:
                    yield queue.pop(result.id), result
        except Exception as error:
            raise_if_fatal(error, engine)
            if queue.consumed == consumed:
                raise _unusable(error) from error
            short, reason = failures.is_out_of_memory(error), describe(error)
        del engine  # frees its cache before the next engine allocates one; no exception may refer to it
        yield from queue.pop_failed()
        if short:
            loading.release_memory(task)
        if short and current > 1:
            _sizes[_key(task)] = failures.halved(current, "decode.batch_size")
            queue.requeue()
        elif reason is not None:
            _LOG.warning("a batch failed, its rows are decoded one by one: %s", reason)
            yield from _one_by_one(queue.pop_unfinished(), task, watchdog, size)
    yield from _one_by_one(queue.deferred, task, watchdog, size)


def _one_by_one(unfinished: list[tuple[dict, Request]], task: Task, watchdog: Watchdog,
                size: int) -> Iterator[tuple[dict, Result | str]]:
    """Decode rows alone. If a row alone does not fit into memory, the batch size returns to ``size``."""
    if not unfinished:
        return
    engine = _engine(task, 1)
    for row, request in unfinished:
        short = False
        try:
            outcome = next(watchdog.watch(engine, engine.run([request])))
        except Exception as error:
            raise_if_fatal(error, engine)
            short = failures.is_out_of_memory(error)
            outcome = _does_not_fit(request, error) if short else describe(error)
        if short:
            loading.release_memory(task)
            _sizes[_key(task)] = size
        yield row, outcome


def _does_not_fit(request: Request, error: Exception) -> str:
    return (f"out of memory with this row alone, whose prompt has {len(request.prompt_ids)} tokens: lower "
            f"history.max_items or decode.max_new_tokens, or give a task more memory ({describe(error)})")


def _engine(task: Task, size: int) -> Engine:
    other = {} if size == task.config.decode.batch_size else {"batch_size": size}
    try:
        return loading.make_engine(task, **other)
    except Exception as error:
        raise_if_fatal(error)
        raise _unusable(error) from error


def _unusable(error: Exception) -> InfrastructureError:
    return InfrastructureError(f"the engine does not start: {describe(error)}. If memory is short, lower "
                               "decode.batch_size or the number of concurrent tasks per machine; "
                               "`dare-job check` tests the model alone")


class _RequestQueue:
    """Makes requests from rows when the engine takes them, and keeps those without a result.

    Attributes
    ----------
    consumed
        Requests made so far; a row that is decoded again counts again.
    deferred
        Rows to decode at the end.
    """

    def __init__(self, rows: Iterator[dict | None], task: Task, watchdog: Watchdog,
                 hung: Mapping[str, Sequence[str]]):
        self._rows, self._task, self._watchdog, self._hung = rows, task, watchdog, hung
        self._next: dict | None = None
        self._requests: dict[str, tuple[dict, Request]] = {}
        self._requeued: deque[tuple[dict, Request]] = deque()
        self.deferred: list[tuple[dict, Request]] = []
        self._failed: list[tuple[dict, str]] = []
        self.consumed = 0

    def has_next(self) -> bool:
        """Whether a row is waiting."""
        if self._requeued:
            return True
        if self._next is None:
            with self._watchdog.paused():
                self._next = next(self._rows, None)
        return self._next is not None

    def __iter__(self) -> Iterator[Request]:
        while self.has_next():
            self.consumed += 1
            if self._requeued:
                row, request = self._requeued.popleft()
            else:
                row, self._next = self._next, None
                request = self._request(row)
            if request is not None:
                self._requests[request.id] = (row, request)
                yield request

    def _request(self, row: dict) -> Request | None:
        """The request of a row; None if the row failed or is decoded at the end."""
        hung = self._hung.get(row["entity_id"], ())
        reason = row["error"] or hangs.give_up_reason(hung)
        if reason is None:
            try:
                request = loading.make_request(row, self._task)
            except Exception as error:
                raise_if_fatal(error)
                reason = describe(error)
        if reason is not None:
            self._failed.append((row, reason))
        elif hung:
            self.deferred.append((row, request))
        else:
            return request
        return None

    def pop(self, request_id: str) -> dict:
        return self._requests.pop(request_id)[0]

    def defer(self, request_id: str) -> None:
        """Decode a row at the end."""
        self.deferred.append(self._requests.pop(request_id))

    def requeue(self) -> None:
        """Return the rows without a result to the front of the queue."""
        self._requeued.extend(self.pop_unfinished())

    def pop_failed(self) -> list[tuple[dict, str]]:
        """Rows without a request and the reason. Returns each row once."""
        failed, self._failed = self._failed, []
        return failed

    def pop_unfinished(self) -> list[tuple[dict, Request]]:
        """Requests without a result. Returns each once."""
        unfinished, self._requests = list(self._requests.values()), {}
        return unfinished


def raise_if_fatal(error: Exception, engine: Engine | None = None) -> None:
    """Check whether an error affects every row; return for an error of one row.

    Parameters
    ----------
    engine
        The engine whose rows were being decoded.

    Raises
    ------
    DareJobError
        The error affects every row: the error itself, or the project's error for it.
    DeviceError
        The device failed.
    """
    if isinstance(error, PoolError):
        raise errors.PoolError(str(error)) from error
    if isinstance(error, DareJobError) and not isinstance(error, RowError):
        raise error
    engines.raise_if_device_failed(error, engine.active_ids() if engine else ())
