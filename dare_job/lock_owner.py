"""Who holds a lock: a process, by its number, its host, and where the number is its own."""

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path


def signature() -> dict:
    return {"pid": os.getpid(), "born": _born(os.getpid()), "host": socket.gethostname(),
            **_namespace(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def has_ended(owner: dict) -> bool:
    """True where a lock's process was one of this host and is no more.

    All of an earlier boot are. Of those in another pid namespace (a container with the same hostname) nobody
    here can tell. Locks of older versions name neither.
    """
    if owner.get("host") != socket.gethostname():
        return False
    differs = _differs(owner)
    return "boot" in differs or ("pid_ns" not in differs and not _alive(owner))


def is_here(owner: dict) -> bool:
    """Whether its number tells whether a lock's process is alive."""
    return owner.get("host") == socket.gethostname() and not _differs(owner)


def _differs(owner: dict) -> set[str]:
    return {name for name, here in _namespace().items() if owner.get(name, here) != here}


def _namespace() -> dict[str, str | int]:
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
    return owner.get("born") == _born(owner["pid"])  # else the number went to another process


def _born(pid: int) -> str | None:
    """When a process began, as Linux counts it; None elsewhere."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def read(path) -> dict:
    """Who holds a lock; empty where it cannot be told."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
