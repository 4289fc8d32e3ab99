"""Conditional writes at URLs: create a file only if it is missing, replace it only if its version matches.

S3 has both requests. HDFS has no compare-and-swap, so a writer that wants to replace version V first creates
the claim file ``<name>.V.turn``. Only one writer can create it. The writer then checks that the file still
has version V and replaces it by a rename; other writers fail to create the claim or see another version.

The claim of a dead owner expires like a lock after ``lease.STALE_S`` and is itself replaced in this way. A
claim names its lease, so an owner that left one behind while the NameNode was unreachable replaces it at
once. A writer that is suspended for longer than that between check and rename is not detected.
"""

import time
import uuid
from contextlib import suppress
from datetime import datetime

from dare_job.errors import InfrastructureError
from dare_job.storage import lease, paths
from dare_job.storage.paths import AnyPath


def create(path: AnyPath, content: bytes) -> bool:
    """Create a file at a URL in one step. False if it already exists."""
    if path.protocol == "hdfs":
        with suppress(FileExistsError):
            path.fs.pipe_file(path.path, content, mode="create")
            return True
        return False
    return _put_if(path, content, IfNoneMatch="*")


def compare_and_swap(path: AnyPath, version: str, content: bytes, owner: str = "") -> bool:
    """Replace a file if it has the given version (``paths.version_of``). False if it does not.

    Also False while another writer is about to replace it.

    Parameters
    ----------
    owner
        As in ``swap_with_claim``.
    """
    if path.protocol == "hdfs":
        return swap_with_claim(path, version, content, owner)
    return _put_if(path, content, IfMatch=version)


def _put_if(path: AnyPath, content: bytes, **condition: str) -> bool:
    """One conditional S3 put. False if the condition did not hold or another put was faster."""
    try:
        path.fs.pipe_file(path.path, content, **condition)
    except OSError as error:
        code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
        if code in ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchKey", "404"):
            return False
        raise
    return True


def swap_with_claim(path: AnyPath, version: str, content: bytes, owner: str = "") -> bool:
    """Replace an HDFS file if it has the given version. False if it does not, or another writer claims it.

    Parameters
    ----------
    owner
        Id of the writer, used by one thread at a time; a writer may take over its own claim.
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
    """Take over an expired claim, or renew the writer's own, which may expire at any moment."""
    try:
        version, claim = paths.version_of(turn), turn.fs.cat_file(turn.path)
        if claim == content:  # the response to its creation was lost
            return True
        own = claim.startswith(f"{owner} ".encode())
        return (own or age_s(turn) >= lease.STALE_S) and swap_with_claim(turn, version, content, owner)
    except FileNotFoundError:  # its owner has just finished
        return False


def age_s(path: AnyPath) -> float:
    """Seconds since a file at a URL was written, by the store's clock.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    """
    probe = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    create(probe, b"")
    try:
        return _modified_s(probe) - _modified_s(path)
    finally:
        probe.unlink(missing_ok=True)


def _modified_s(path: AnyPath) -> float:
    modified = path.fs.info(path.path).get("LastModified")
    return modified.timestamp() if isinstance(modified, datetime) else time.time()


def remove_leftovers(path: AnyPath) -> None:
    """Remove files that killed processes left beside a lock that this process has just acquired."""
    if path.protocol != "hdfs":
        return
    with suppress(OSError, InfrastructureError):
        now = path.fs.info(path.path)["LastModified"]
        for entry in path.fs.ls(path.parent.path):
            name, age = entry["name"].rpartition("/")[2], now - entry["LastModified"]
            if name.lstrip(".").startswith(f"{path.name}.") and age.total_seconds() >= lease.STALE_S:
                path.fs.rm_file(entry["name"])
