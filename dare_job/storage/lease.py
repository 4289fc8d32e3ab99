"""A lock that is held shows it every minute: one that was silent for ten is dead, wherever its holder was.

Who was silent for so long and lives has lost the lock, and learns it from ``require_held``, which comes
before all that makes work final.

Who holds a lock: a process, by its number, its host, and where the number is its own.
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
    """What is held. ``renew`` shows it, and raises InfrastructureError where the lock is another's by now."""

    path: AnyPath

    def renew(self) -> None: ...
    def release(self) -> None: ...


@contextmanager
def renewing(lease: Lease) -> Iterator[None]:
    """Renew a lock that was taken while the block runs, then release it."""
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
    """Renew each lock that blocks around the caller hold.

    Raises InfrastructureError where one is another's by now. What disk and store answer is passed on.
    """
    for lease in _HELD.get():
        lease.renew()


def lock_lost(path: AnyPath) -> InfrastructureError:
    return InfrastructureError(
        f"{path} is no longer this command's: somebody removed it, or another command took it over after "
        f"{STALE_S / 60:.0f} minutes without a sign of life of this one, which changes nothing more; run it "
        "again once the other one has ended")


def _renew_loop(lease: Lease, stop: threading.Event) -> None:
    """Renew until told to stop, or until the lock is lost; a store that is away is asked again sooner."""
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
    return {"pid": os.getpid(), "born": _start_time(os.getpid()), "host": socket.gethostname(),
            **_host_identity(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def owner_has_ended(owner: dict) -> bool:
    """True where a lock's process was one of this host and is no more.

    All of an earlier boot are. Of those in another pid namespace (a container with the same hostname) nobody
    here can tell. Locks of older versions name neither.
    """
    if owner.get("host") != socket.gethostname():
        return False
    differs = _differing(owner)
    return "boot" in differs or ("pid_ns" not in differs and not _alive(owner))


def owner_is_local(owner: dict) -> bool:
    """Whether its number tells whether a lock's process is alive."""
    return owner.get("host") == socket.gethostname() and not _differing(owner)


def _differing(owner: dict) -> set[str]:
    return {name for name, here in _host_identity().items() if owner.get(name, here) != here}


def _host_identity() -> dict[str, str | int]:
    """Where this process's number is its own: boot of the machine and pid namespace. Empty but on Linux."""
    found: dict[str, str | int] = {}
    with suppress(OSError):
        found["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        found["pid_ns"] = os.stat("/proc/self/ns/pid").st_ino
    return found


def _alive(owner: dict) -> bool:
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return owner.get("born") == _start_time(owner["pid"])  # else the number went to another process


def _start_time(pid: int) -> str | None:
    """When a process began, as Linux counts it; None elsewhere."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def read_owner(path) -> dict:
    """Who holds a lock; empty where it cannot be told."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
