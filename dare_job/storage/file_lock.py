"""The lock of a date on a disk: a file that is created in one step, and taken over from a dead process.

A process of this host is looked up. Other hosts mount the disk too (a driver's pod whose next one has another
name, say): their locks show that they live by their time of change (``lease``).
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
    """Hold the lock while the block runs. Raises ``refusal(path, its signature)`` where another one does."""
    mine = {**owner_record(), "lease": uuid.uuid4().hex}
    if not _create(path, mine):
        _remove_stale(path, read_owner(path), refusal)
        if not _create(path, mine):
            raise refusal(path, read_owner(path))
    _remove_leftovers(path)
    with lease.renewing(_Lease(path, mine["lease"])):
        yield


class _Lease:
    """A lock on a disk, which other hosts may mount: its time of change says that the holder lives."""

    def __init__(self, path: Path, name: str):
        self.path, self._name = path, name

    def renew(self) -> None:
        """Raises InfrastructureError where the lock is another's, or gone."""
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
    """Whether a lock whose process is not of this host was not renewed for so long that it is dead.

    Both times are those of the disk. Locks of older versions are not renewed.
    """
    if "lease" not in owner or owner_is_local(owner):
        return False
    probe = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        written = path.stat().st_mtime
        if time.time() - written < lease.STALE_S / 2:  # hosts whose clocks differ by more are not asked for
            return False
        probe.touch()
        return probe.stat().st_mtime - written >= lease.STALE_S
    except OSError:  # given back just now, or nothing can be written here
        return False
    finally:
        with suppress(OSError):
            probe.unlink()


def _create(path: Path, signature: dict) -> bool:
    """Create the lock in this process's name, in one step; False where it is there already."""
    own = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # `dare-job clean` removed the empty folder, between
            _write_owner(own, "w", signature)
            break
    try:
        os.link(own, path)
    except (FileExistsError, FileNotFoundError):  # swept by its holder, between
        return False
    except OSError:  # a filesystem without links
        return _create_in_two_steps(path, signature)
    finally:
        own.unlink(missing_ok=True)
    return True


def _create_in_two_steps(path: Path, signature: dict) -> bool:
    """The same; a kill between the steps leaves a lock that nobody takes over."""
    try:
        _write_owner(path, "x", signature)
    except FileExistsError:
        return False
    return True


def _write_owner(path: Path, mode: str, signature: dict) -> None:
    with open(path, mode, encoding="utf-8") as lock:
        json.dump(signature, lock)
        lock.flush()
        os.fsync(lock.fileno())


def _remove_leftovers(path: Path) -> None:
    """Remove what dead processes left on their way to a lock."""
    for left in path.parent.glob(f"{path.name}.*"):
        owner = read_owner(left)
        if not owner or owner_has_ended(owner):
            left.unlink(missing_ok=True)


def _remove_stale(path: Path, owner: dict, refusal: Callable[[Path, dict], Exception]) -> None:
    """Remove a dead process's lock. Raises InfrastructureError where its process may be alive.

    Of several processes that find it, one at a time holds the dead file itself (flock) and looks whether it
    is still the one in place: a lock that another has taken by then stays. The file is opened once more for
    that, which a network's disk does not answer from memory.
    """
    if not (owner_has_ended(owner) or is_expired(path, owner)):
        raise refusal(path, owner)
    with suppress(FileNotFoundError), open(path, "r+b") as dead:
        try:
            fcntl.flock(dead, fcntl.LOCK_EX)
        except OSError:  # a filesystem without these locks
            raise refusal(path, owner) from None
        with open(path, "rb") as placed:
            if not os.path.samestat(os.fstat(dead.fileno()), os.fstat(placed.fileno())):
                return
        if (now := read_owner(path)) and not (owner_has_ended(now) or is_expired(path, now)):
            raise refusal(path, now)
        path.unlink()
        _LOG.warning("took over %s from process %s on %s, which %s", path, owner["pid"], owner["host"],
                     "has ended" if owner_has_ended(owner) else "stopped renewing the lock")
