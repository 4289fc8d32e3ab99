"""The lock of a date at a URL: an object that conditional writes create, take over and renew.

The next run is often on another host (for example a new container), where the process table does not help.
So a held lock is rewritten every minute. It has expired when it has not changed for ``lease.STALE_S`` by
the store's own clock.
"""

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dare_job.errors import InfrastructureError
from dare_job.storage import conditional_write, errors, lease, paths
from dare_job.storage.paths import AnyPath

_LOG = logging.getLogger("dare_job")


@contextmanager
def held(path: AnyPath, refusal: Callable[[AnyPath, dict], Exception]) -> Iterator[None]:
    """Hold the lock while the block runs.

    Raises
    ------
    Exception
        ``refusal(path, owner)``: another process holds the lock.
    """
    mine = _Lease(path)
    if not conditional_write.create(path, mine.content()) and not _take_over(path, mine):
        raise refusal(path, _read(path))
    conditional_write.remove_leftovers(path)
    with lease.renewing(mine):
        yield


class _Lease:
    """A holder's lock object. Every write names the lease and has a new version."""

    def __init__(self, path: AnyPath):
        self.path, self.name = path, uuid.uuid4().hex
        self._signature = {**lease.owner_record(), "lease": self.name}
        self._turn = threading.Lock()

    def content(self) -> bytes:
        return json.dumps({**self._signature, "renewal": uuid.uuid4().hex}).encode()

    def wrote(self, owner: dict) -> bool:
        return owner.get("lease") == self.name

    def renew(self) -> None:
        """Rewrite the object.

        If the store refuses the write but the object is this lease's with a new version, an earlier attempt
        succeeded and only its response was lost.

        Raises
        ------
        InfrastructureError
            The object is gone or another command has taken it over.
        OSError
            The object was not renewed.
        """
        with self._turn:
            before = self._require_own()
            written = conditional_write.compare_and_swap(self.path, before, self.content(), self.name)
            if not written and self._require_own() == before:
                raise OSError(f"{self.path} was not renewed: another command is about to take it over; run "
                              "this command again later")

    def release(self) -> None:
        with errors.suppress_store_errors(OSError, InfrastructureError):
            self._require_own()
            self.path.unlink(missing_ok=True)
            paths.remove_empty(self.path.parent)

    def _require_own(self) -> str:
        """The object's version. Raises InfrastructureError if it is not this lease's."""
        try:
            version, owner = paths.version_of(self.path), _content(self.path)
        except FileNotFoundError:
            version, owner = "", {}
        if not self.wrote(owner):
            raise lease.lock_lost(self.path)
        return version


def _take_over(path: AnyPath, mine: _Lease) -> bool:
    """Take over an expired lock. False if another process holds it."""
    try:
        version, owner = paths.version_of(path), _read(path)
        silent_s = conditional_write.age_s(path)
    except FileNotFoundError:  # released in the meantime
        return conditional_write.create(path, mine.content()) or mine.wrote(_read(path))
    if mine.wrote(owner):  # the response to its first write was lost
        return True
    if not lease.owner_has_ended(owner) and silent_s < lease.STALE_S:
        return False
    replaced = conditional_write.compare_and_swap(path, version, mine.content(), mine.name)
    if not replaced and not mine.wrote(_read(path)):
        return False
    _LOG.warning("took over %s from process %s on %s, not renewed for %.0f s", path,
                 owner.get("pid", "?"), owner.get("host", "?"), silent_s)
    return True


def is_alive(path: AnyPath) -> bool:
    """False if a lock object has expired, so that the next command takes it over."""
    try:
        return conditional_write.age_s(path) < lease.STALE_S
    except FileNotFoundError:  # released in the meantime
        return False


def _content(path: AnyPath) -> dict:
    """The lock's owner; empty if it is damaged. Raises OSError if it cannot be read."""
    try:
        return json.loads(path.fs.cat_file(path.path))
    except ValueError:
        return {}


def _read(path: AnyPath) -> dict:
    """The lock's owner; empty if it cannot be read."""
    with errors.suppress_store_errors(OSError):
        return _content(path)
    return {}
