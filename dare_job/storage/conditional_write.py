"""Replaces a file of HDFS only while it has a version, for which the NameNode has no request of its own.

Who wants to replace version V first creates ``<name>.V.turn``, which one of many can, looks whether the file
still is V, and puts its content in place by a rename. Nobody else replaces V meanwhile; who comes later finds
another version. A turn whose taker died is taken over like a lock: silent for ``lease.STALE_S``, it is itself
replaced in this way. So is one that its own taker left because the NameNode was away, but at once: the turn
names its lease. A taker that is suspended for so long, between looking and renaming, is not noticed.
"""

import time
import uuid
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dare_job.errors import InfrastructureError
from dare_job.storage import lease, paths
from dare_job.storage.paths import AnyPath

if TYPE_CHECKING:
    from upath import UPath

    AnyPath = Path | UPath
else:
    AnyPath = Path


def create(path: AnyPath, content: bytes) -> bool:
    """Write a file of a URL unless it is there, in one step; False where it was."""
    if path.protocol == "hdfs":
        with suppress(FileExistsError):
            path.fs.pipe_file(path.path, content, mode="create")
            return True
        return False
    return _put_if(path, content, IfNoneMatch="*")


def compare_and_swap(path: AnyPath, version: str, content: bytes, owner: str = "") -> bool:
    """Write a file that still has a version (``version_of``), in one step; False where it has another.

    False also where another one is about to replace it. ``owner``: see ``lock_turn``.
    """
    if path.protocol == "hdfs":

        return swap_with_claim(path, version, content, owner)
    return _put_if(path, content, IfMatch=version)


def _put_if(path: AnyPath, content: bytes, **condition: str) -> bool:
    """One put with a condition of S3; False where the condition did not hold, or another put was faster."""
    try:
        path.fs.pipe_file(path.path, content, **condition)
    except OSError as error:
        code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
        if code in ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchKey", "404"):
            return False
        raise
    return True


def swap_with_claim(path: AnyPath, version: str, content: bytes, owner: str = "") -> bool:
    """Write a file that still has a version; False where it has another, or another one replaces it now.

    owner  names who asks, from one thread at a time: a turn that it left itself is its own
    """
    turn = path.with_name(f"{path.name}.{version}.turn")
    owner = owner or uuid.uuid4().hex
    mine = f"{owner} {uuid.uuid4().hex}".encode()
    if not (create(turn, mine) or _take_over_claim(turn, mine, owner)):
        return False
    try:
        if paths.version_of(path) != version:
            return False
        path.fs.pipe_file(path.path, content)
        return True
    except FileNotFoundError:
        return False
    finally:
        turn.unlink(missing_ok=True)


def _take_over_claim(turn: AnyPath, content: bytes, owner: str) -> bool:
    """An own turn is replaced, too: one that was left long ago may be another's in a moment."""
    try:
        version, found = paths.version_of(turn), turn.fs.cat_file(turn.path)
        if found == content:  # the answer to its creation was lost
            return True
        own = found.startswith(f"{owner} ".encode())
        return (own or age_s(turn) >= lease.STALE_S) and swap_with_claim(turn, version, content, owner)
    except FileNotFoundError:  # done just now
        return False


def age_s(path: AnyPath) -> float:
    """Seconds since a file at a URL was written, by the store's clock. Raises FileNotFoundError."""
    probe = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    create(probe, b"")
    try:
        return _modified_s(probe) - _modified_s(path)
    finally:
        probe.unlink(missing_ok=True)


def _modified_s(path: AnyPath) -> float:
    found = path.fs.info(path.path).get("LastModified")
    return found.timestamp() if isinstance(found, datetime) else time.time()


def remove_leftovers(path: AnyPath) -> None:
    """Remove what killed processes left beside a lock that was taken just now."""
    if path.protocol != "hdfs":
        return
    with suppress(OSError, InfrastructureError):
        now = path.fs.info(path.path)["LastModified"]
        for entry in path.fs.ls(path.parent.path):
            name, age = entry["name"].rpartition("/")[2], now - entry["LastModified"]
            if name.lstrip(".").startswith(f"{path.name}.") and age.total_seconds() >= lease.STALE_S:
                path.fs.rm_file(entry["name"])
