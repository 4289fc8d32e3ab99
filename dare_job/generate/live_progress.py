"""Reports the progress of a worker while its chunk is open; otherwise a slow model shows none for minutes.

A thread reads the arrays of the engine's rows at intervals, so decoding needs no code for it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dare_job.generate.hangs import Watchdog
from dare_job.storage import errors
from dare_job.storage.paths import AnyPath, is_local
from dare_job.tables import chunk_progress
from dare_job.tables.chunk_files import Totals

_LOCAL_S, _STORE_S = 3.0, 15.0  # seconds between two writes, on a disk and on an object store


class LiveProgress:
    """Writes the progress of one shard.

    Parameters
    ----------
    finished
        Returns the totals of the rows that are finished but not committed.
    watchdog
        Holds the engine, whose unfinished rows are added.
    """

    def __init__(self, folder: AnyPath, shard: int, token: str, finished: Callable[[], Totals],
                 watchdog: Watchdog):
        self._folder, self._shard, self._token = folder, shard, token
        self._finished, self._watchdog = finished, watchdog
        self._wake, self._ended = threading.Event(), False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write at intervals during the block, then delete the file."""
        thread = threading.Thread(target=self._run, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended = True
            self._wake.set()
            thread.join(timeout=30.0)  # a store that hangs must not block the shard
            with errors.suppress_store_errors(OSError):
                chunk_progress.remove(self._folder, self._shard)

    def committed(self) -> None:
        """Write soon, without waiting: the rows of a committed chunk no longer count here."""
        self._wake.set()

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(_LOCAL_S if is_local(self._folder) else _STORE_S)
            self._wake.clear()
            with errors.suppress_store_errors(OSError):  # an error loses only this update
                chunk_progress.write(self._folder, self._shard, self._token, self._totals())

    def _totals(self) -> Totals:
        engine = self._watchdog.engine
        decoded = Totals(**engine.unfinished()) if engine else Totals()
        return self._finished() + decoded
