"""One writer per date: ``OUT/_work/dt=D/_lock`` exists while a command writes and names its process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from dare_job.errors import InfrastructureError
from dare_job.storage import file_lock, lease, object_lock, paths
from dare_job.storage.lease import require_held as require_held
from dare_job.storage.paths import AnyPath

NAME = "_lock"
_PATIENCE_S = 60.0
_CLEANS = "moves old dates away, or erases data"


@contextmanager
def held(folder: AnyPath, by: str = "writes this date") -> Iterator[None]:
    """Hold the lock of a date's work folder while the block runs.

    Takes over the lock of a process of this host that has ended, and of another host after ``lease.STALE_S``
    without renewal.

    Parameters
    ----------
    by
        What a lock holder does, for the error message.

    Raises
    ------
    InfrastructureError
        Another process holds the lock; the message names process and file.
    """
    path = folder / NAME
    kind = file_lock if paths.is_local(folder) else object_lock
    with kind.held(path, partial(_refusal, by=by)):
        yield


def owner_of(folder: AnyPath) -> dict | None:
    """Owner of a folder's lock: pid, host, since; empty if it cannot be read.

    None if there is no lock, or its process is known to have ended.
    """
    path = folder / NAME
    if not path.exists():
        return None
    owner = lease.read_owner(path)
    silent = file_lock.is_expired(path, owner) if paths.is_local(path) else not object_lock.is_alive(path)
    return None if silent or lease.owner_has_ended(owner) else owner


@contextmanager
def held_for_cleaning(folder: AnyPath) -> Iterator[None]:
    """Hold the lock of the folder of all dates. Every command waits for it at its start, at most a minute."""
    with held(folder, _CLEANS):
        yield


def wait_until_free(folder: AnyPath, by: str = _CLEANS) -> None:
    """Wait until a briefly held lock, such as that of ``held_for_cleaning``, is free.

    Raises
    ------
    InfrastructureError
        It is still held after a minute; the message names process and file.
    """
    until = time.monotonic() + _PATIENCE_S
    while (owner := owner_of(folder)) is not None:
        if time.monotonic() > until:
            raise _refusal(folder / NAME, owner, by)
        time.sleep(0.05 if paths.is_local(folder) else 1.0)


def _refusal(path: AnyPath, owner: dict, by: str) -> InfrastructureError:
    who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}, since {owner.get('since', '?')}"
    return InfrastructureError(f"another command {by} ({who}): wait until it ends. If that process is not "
                               f"a dare-job command, remove {path}")
