"""Leases: a held lock is renewed every minute and expires after ten minutes without renewal.

A holder that missed its renewals has lost the lock even if it is alive. It must call ``require_held`` before
every commit, which raises in that case.

A lock file names its owner: process id, start time, host, boot id and pid namespace.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from dare_job.errors import InfrastructureError
from dare_job.storage import errors
from dare_job.storage.paths import AnyPath

RENEW_S = 60.0
STALE_S = 600.0
_LOG = logging.getLogger("dare_job")


class Lease(Protocol):
    """A held lock.

    Raises
    ------
    InfrastructureError
        By ``renew``: another command has taken the lock over, or its file was removed.
    """

    path: AnyPath

    def renew(self) -> None: ...
    def release(self) -> None: ...


@contextmanager
def renewing(lease: Lease) -> Iterator[None]:
    """Renew a lock in the background while the block runs, then release it."""
    stop = threading.Event()
    thread = threading.Thread(target=_renew_loop, args=(lease, stop), daemon=True)
    thread.start()
    outer = _HELD.set((*_HELD.get(), lease))
    try:
        yield
    finally:
        _HELD.reset(outer)
        stop.set()
        thread.join()
        lease.release()


def require_held() -> None:
    """Renew all locks that the calling context holds, for another ten minutes. Call this before every commit.

    Raises
    ------
    InfrastructureError
        A lock was removed or taken over by another command.
    OSError
        The disk or store failed.
    """
    for lease in _HELD.get():
        lease.renew()


def lock_lost(path: AnyPath) -> InfrastructureError:
    """The error of a lock that was removed or taken over by another command."""
    return InfrastructureError(
        f"{path} is no longer held by this command: the file was removed, or another command took it over "
        f"after {STALE_S / 60:.0f} minutes without renewal. This command publishes nothing more; run it "
        "again once the other one has ended")


def _renew_loop(lease: Lease, stop: threading.Event) -> None:
    """Renew until ``stop`` is set or the lock is lost. Failed renewals are retried more often."""
    wait_s = RENEW_S
    while not stop.wait(wait_s):
        try:
            lease.renew()
            wait_s = RENEW_S
        except InfrastructureError as error:
            _LOG.error("%s", error)
            return
        except Exception as error:
            if wait_s == RENEW_S:
                _LOG.warning("%s could not be renewed and is tried again: %s", lease.path,
                             errors.store_message(error) or error)
            wait_s = RENEW_S / 6


_HELD: ContextVar[tuple[Lease, ...]] = ContextVar("held", default=())


def owner_record() -> dict:
    """This process as lock files name it: ``born`` in clock ticks since boot, ``since`` in local time."""
    return {"pid": os.getpid(), "born": _start_time(os.getpid()), "host": socket.gethostname(),
            **_host_identity(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def owner_has_ended(owner: dict) -> bool:
    """True if the lock's process ran on this host and has ended.

    A lock with another boot id is from before a reboot, so its process has ended. For another pid namespace
    (a container with the same hostname) this cannot be known. Systems other than Linux have neither field.
    """
    if owner.get("host") != socket.gethostname():
        return False
    differs = _differing(owner)
    return "boot" in differs or ("pid_ns" not in differs and not _alive(owner))


def owner_is_local(owner: dict) -> bool:
    """Whether the owner's process id is valid in this process's pid namespace."""
    return owner.get("host") == socket.gethostname() and not _differing(owner)


def _differing(owner: dict) -> set[str]:
    return {name for name, here in _host_identity().items() if owner.get(name, here) != here}


def _host_identity() -> dict[str, str | int]:
    """Boot id and pid namespace, within which a process id is unique. Empty on systems other than Linux."""
    identity: dict[str, str | int] = {}
    with suppress(OSError):
        identity["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        identity["pid_ns"] = os.stat("/proc/self/ns/pid").st_ino
    return identity


def _alive(owner: dict) -> bool:
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return owner.get("born") == _start_time(owner["pid"])  # otherwise the process id was reused


def _start_time(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot; None on systems other than Linux."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def read_owner(path) -> dict:
    """The owner recorded in a lock file; empty if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
