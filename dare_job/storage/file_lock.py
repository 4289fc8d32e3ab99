"""The lock of a date on a disk: a file created in one step and taken over from a dead process.

For a process of this host, the process table tells whether it is alive. The disk may be mounted by other
hosts too (for example successive driver pods); their locks expire unless they are renewed (``lease``).
"""

import fcntl
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dare_job.storage import lease
from dare_job.storage.lease import owner_has_ended, owner_is_local, owner_record, read_owner

_LOG = logging.getLogger("dare_job")


@contextmanager
def held(path: Path, refusal: Callable[[Path, dict], Exception]) -> Iterator[None]:
    """Hold the lock while the block runs.

    Raises
    ------
    Exception
        ``refusal(path, owner)``: another process holds the lock.
    """
    mine = {**owner_record(), "lease": uuid.uuid4().hex}
    if not _create(path, mine):
        _remove_stale(path, read_owner(path), refusal)
        if not _create(path, mine):
            raise refusal(path, read_owner(path))
    _remove_leftovers(path)
    with lease.renewing(_Lease(path, mine["lease"])):
        yield


class _Lease:
    """A lock file; renewing it updates its modification time, which other hosts check."""

    def __init__(self, path: Path, name: str):
        self.path, self._name = path, name

    def renew(self) -> None:
        """Raise InfrastructureError if the lock is gone or another process has taken it over."""
        try:
            owner = json.loads(self.path.read_text(encoding="utf-8"))
            if owner.get("lease") == self._name:
                os.utime(self.path)
                return
        except (FileNotFoundError, ValueError):
            pass
        raise lease.lock_lost(self.path)

    def release(self) -> None:
        if read_owner(self.path).get("lease") == self._name:
            self.path.unlink(missing_ok=True)


def is_expired(path: Path, owner: dict) -> bool:
    """Whether a lock of another host, or a half-written one, has not been renewed for ``lease.STALE_S``.

    Both times come from the disk's clock.
    """
    if owner_is_local(owner):
        return False
    probe = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        written = path.stat().st_mtime
        if time.time() - written < lease.STALE_S / 2:  # saves the probe; allows for some clock skew
            return False
        probe.touch()
        return probe.stat().st_mtime - written >= lease.STALE_S
    except OSError:  # released in the meantime, or the folder is not writable
        return False
    finally:
        with suppress(OSError):
            probe.unlink()


def _create(path: Path, signature: dict) -> bool:
    """Create the lock file in one step. False if it already exists."""
    own = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # `dare-job clean` removed the empty folder in between
            _write_owner(own, "w", signature)
            break
    try:
        os.link(own, path)
    except (FileExistsError, FileNotFoundError):  # the lock's holder removed our file as a leftover
        return False
    except OSError:  # the filesystem has no hard links; after a kill in between, the empty file expires
        try:
            _write_owner(path, "x", signature)
        except FileExistsError:
            return False
    finally:
        own.unlink(missing_ok=True)
    return True


def _write_owner(path: Path, mode: str, signature: dict) -> None:
    with open(path, mode, encoding="utf-8") as lock:
        json.dump(signature, lock)
        lock.flush()
        os.fsync(lock.fileno())


def _remove_leftovers(path: Path) -> None:
    """Remove files of dead processes that were trying to acquire the lock."""
    for left in path.parent.glob(f"{path.name}.*"):
        owner = read_owner(left)
        if not owner or owner_has_ended(owner):
            left.unlink(missing_ok=True)


def _remove_stale(path: Path, owner: dict, refusal: Callable[[Path, dict], Exception]) -> None:
    """Remove a dead process's lock. Raises InfrastructureError if its process may be alive.

    Several processes may try this at once. Each takes an flock on the file and removes it only if it is still
    the lock in place, so that a lock acquired in the meantime survives. The file is opened a second time for
    this check, because a network filesystem does not answer that from its cache.
    """
    if not (owner_has_ended(owner) or is_expired(path, owner)):
        raise refusal(path, owner)
    with suppress(FileNotFoundError), open(path, "r+b") as dead:
        try:
            fcntl.flock(dead, fcntl.LOCK_EX)
        except OSError:  # the filesystem does not support flock
            raise refusal(path, owner) from None
        with open(path, "rb") as placed:
            if not os.path.samestat(os.fstat(dead.fileno()), os.fstat(placed.fileno())):
                return
        owner = read_owner(path)
        if not (owner_has_ended(owner) or is_expired(path, owner)):
            raise refusal(path, owner)
        path.unlink()
        reason = "has ended" if owner_has_ended(owner) else "stopped renewing the lock"
        _LOG.warning("took over %s from process %s on %s, which %s", path, owner.get("pid", "?"),
                     owner.get("host", "?"), reason)
