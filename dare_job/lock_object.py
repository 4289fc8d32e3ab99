"""The lock of a date at a URL: an object that one conditional request creates, takes over or keeps alive.

A disk's lock is known to be dead by its process. Here the next run is often on another host (a new
container, say), so a lock that is held is written again every minute, and one that stayed the same for
``STALE_S`` by the store's own clock is dead, whoever held it.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from dare_job import files
from dare_job.files import AnyPath

RENEW_S = 60.0
STALE_S = 600.0
_LOG = logging.getLogger("dare_job")


@contextmanager
def held(path: AnyPath, signature: dict, ended: Callable[[dict], bool],
         refusal: Callable[[AnyPath, dict], Exception]) -> Iterator[None]:
    """Hold the lock object ``path`` while the block runs.

    ended  whether the process that a signature names is known to have ended (on this host)
    Raises ``refusal(path, its signature)`` where somebody else holds it.
    """
    mine = _Lease(path, signature)
    if not files.create(path, mine.content()):
        _take_over(path, mine, ended, refusal)
    mine.remember()
    thread = threading.Thread(target=mine.keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        mine.stop.set()
        thread.join()
        mine.release()


class _Lease:
    """One holder's lock object: each writing of it has another version."""

    def __init__(self, path: AnyPath, signature: dict):
        self._path, self._signature, self._version = path, signature, ""
        self.stop = threading.Event()

    def content(self) -> bytes:
        return json.dumps({**self._signature, "renewal": uuid.uuid4().hex}).encode()

    def remember(self) -> None:
        self._version = files.version_of(self._path)

    def keep(self) -> None:
        while not self.stop.wait(RENEW_S):
            with suppress(Exception):  # the store may be away for a while: tried again
                if files.swap_content(self._path, self._version, self.content()):
                    self.remember()
                elif not self.stop.is_set():
                    _LOG.error("%s was taken by another command: this one was silent for too long",
                               self._path)
                    return

    def release(self) -> None:
        with suppress(OSError):
            if files.version_of(self._path) == self._version:
                self._path.unlink(missing_ok=True)


def _take_over(path: AnyPath, mine: _Lease, ended: Callable[[dict], bool],
               refusal: Callable[[AnyPath, dict], Exception]) -> None:
    try:
        version, owner = files.version_of(path), _read(path)
    except FileNotFoundError:  # released just now
        if files.create(path, mine.content()):
            return
        raise refusal(path, _read(path)) from None
    silent_s = _silent_s(path)
    if not ended(owner) and silent_s < STALE_S:
        raise refusal(path, owner)
    if not files.swap_content(path, version, mine.content()):
        raise refusal(path, _read(path))
    _LOG.warning("%s was left by process %s on %s, silent for %.0f s: taken over", path,
                 owner.get("pid", "?"), owner.get("host", "?"), silent_s)


def is_alive(path: AnyPath) -> bool:
    """False where a lock object has been silent for so long that the next command takes it over."""
    try:
        return _silent_s(path) < STALE_S
    except FileNotFoundError:  # given back just now
        return False


def _silent_s(path: AnyPath) -> float:
    """Seconds since the lock was written, by the store's clock."""
    probe = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    files.create(probe, b"")
    try:
        return _written(probe) - _written(path)
    finally:
        probe.unlink(missing_ok=True)


def _written(path: AnyPath) -> float:
    found = path.fs.info(path.path).get("LastModified")
    return found.timestamp() if isinstance(found, datetime) else time.time()


def _read(path: AnyPath) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
