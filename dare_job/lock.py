"""One writer a date: ``OUT/_work/dt=D/_lock`` is there while a command writes, and names its process."""

import fcntl
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from dare_job import files, lock_object
from dare_job.errors import InfrastructureError
from dare_job.files import AnyPath

NAME = "_lock"
_LOG = logging.getLogger("dare_job")


_PATIENCE_S = 60.0
_CLEANS = "moves old dates away"


@contextmanager
def held(folder: AnyPath, by: str = "writes this date") -> Iterator[None]:
    """Hold the lock of a date's work folder while the block runs; ``by``: what its holder does.

    Raises InfrastructureError, naming process and file, where another process holds it. The lock of a
    process that ended on this host is taken over.
    """
    path = folder / NAME
    if not files.is_local(folder):
        with lock_object.held(path, _signature(), has_ended, partial(_refusal, by=by)):
            yield
        return
    if not _created(path):
        _retire(path, _read(path), by)
        if not _created(path):
            raise _refusal(path, _read(path), by)
    _sweep(folder)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def held_by(folder: AnyPath) -> dict | None:
    """Who holds a folder's lock: pid, host, since; empty where it cannot be told.

    None where nobody does, or only a process that is known to have ended.
    """
    path = folder / NAME
    if not path.exists():
        return None
    owner = _read(path)
    if has_ended(owner) or not (files.is_local(path) or lock_object.is_alive(path)):
        return None
    return owner


def require_held() -> None:
    """Raise InfrastructureError where a lock at a URL that is held here was taken by another command.

    To be called before anything is made final. The lock is renewed, so it holds for ten minutes from then.
    """
    lock_object.require_held()


@contextmanager
def cleaning(folder: AnyPath) -> Iterator[None]:
    """Hold the lock of all dates' work folder, for moments: each command ``wait``s for it as it starts."""
    with held(folder, _CLEANS):
        yield


def wait(folder: AnyPath) -> None:
    """Wait until no living process holds the lock of ``cleaning``.

    Raises InfrastructureError, naming process and file, where it is still held after a minute.
    """
    until = time.monotonic() + _PATIENCE_S
    while (owner := held_by(folder)) is not None:
        if time.monotonic() > until:
            raise _refusal(folder / NAME, owner, _CLEANS)
        time.sleep(0.05 if files.is_local(folder) else 1.0)


def has_ended(owner: dict) -> bool:
    """True where a lock's process was one of this host and is no more.

    All of an earlier boot are. Of those in another pid namespace (a container with the same hostname) nobody
    here can tell. Locks of older versions name neither.
    """
    if owner.get("host") != socket.gethostname():
        return False
    differs = {name for name, here in _namespace().items() if owner.get(name, here) != here}
    return "boot" in differs or ("pid_ns" not in differs and not _alive(owner))


def _created(path: Path) -> bool:
    """Create the lock in this process's name, in one step; False where it is there already."""
    own = path.with_name(f"{NAME}.{uuid.uuid4().hex}")
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # `dare-job clean` removed the empty folder, between
            _sign(own, "w")
            break
    try:
        os.link(own, path)
    except (FileExistsError, FileNotFoundError):  # swept by its holder, between
        return False
    except OSError:  # a filesystem without links
        return _created_in_two_steps(path)
    finally:
        own.unlink(missing_ok=True)
    return True


def _created_in_two_steps(path: Path) -> bool:
    """The same; a kill between the steps leaves a lock that nobody takes over."""
    try:
        _sign(path, "x")
    except FileExistsError:
        return False
    return True


def _sign(path: Path, mode: str) -> None:
    with open(path, mode, encoding="utf-8") as lock:
        json.dump(_signature(), lock)
        lock.flush()
        os.fsync(lock.fileno())


def _signature() -> dict:
    return {"pid": os.getpid(), "born": _born(os.getpid()), "host": socket.gethostname(),
            **_namespace(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _namespace() -> dict[str, str | int]:
    """Where this process's number is its own: boot of the machine and pid namespace. Empty but on Linux."""
    found: dict[str, str | int] = {}
    with suppress(OSError):
        found["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        found["pid_ns"] = os.stat("/proc/self/ns/pid").st_ino
    return found


def _sweep(folder: Path) -> None:
    """Remove what dead processes left on their way to a lock."""
    for left in folder.glob(f"{NAME}.*"):
        owner = _read(left)
        if not owner or has_ended(owner):
            left.unlink(missing_ok=True)


def _retire(path: Path, owner: dict, by: str) -> None:
    """Remove a dead process's lock. Raises InfrastructureError where its process may be alive.

    Of several processes that find it, one at a time holds the dead file itself (flock; all of them are on
    its host) and looks whether it is still the one in place: a lock that another has taken by then stays.
    """
    if not has_ended(owner):
        raise _refusal(path, owner, by)
    with suppress(FileNotFoundError), open(path, "r+b") as dead:
        fcntl.flock(dead, fcntl.LOCK_EX)
        if not os.path.samestat(os.fstat(dead.fileno()), os.stat(path)):
            return
        if (now := _read(path)) and not has_ended(now):
            raise _refusal(path, now, by)
        path.unlink()
        _LOG.warning("%s was left by process %s, which has ended: taken over", path, owner["pid"])


def _alive(owner: dict) -> bool:
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return owner.get("born") == _born(owner["pid"])  # else the number went to another process


def _born(pid: int) -> str | None:
    """When a process began, as Linux counts it; None elsewhere."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _read(path: Path) -> dict:
    """Who holds a lock; empty where it cannot be told."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _refusal(path: AnyPath, owner: dict, by: str) -> InfrastructureError:
    who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}, since {owner.get('since', '?')}"
    return InfrastructureError(f"another command {by} ({who}): wait until it ends, or remove "
                               f"{path} if that process is no longer this job's")
