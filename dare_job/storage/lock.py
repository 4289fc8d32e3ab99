"""One writer a date: ``OUT/_work/dt=D/_lock`` is there while a command writes, and names its process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from dare_job.errors import InfrastructureError
from dare_job.storage import file_lock, lease, object_lock, paths
from dare_job.storage.lease import owner_has_ended, owner_record, read_owner
from dare_job.storage.paths import AnyPath

NAME = "_lock"
_PATIENCE_S = 60.0
_CLEANS = "moves old dates away"


@contextmanager
def held(folder: AnyPath, by: str = "writes this date") -> Iterator[None]:
    """Hold the lock of a date's work folder while the block runs; ``by``: what its holder does.

    Raises InfrastructureError, naming process and file, where another process holds it. The lock of a
    process that ended on this host is taken over, and that of another host once it was silent for
    ``lease.STALE_S``.
    """
    path = folder / NAME
    refusal = partial(_refusal, by=by)
    if paths.is_local(folder):
        with file_lock.held(path, refusal):
            yield
    else:
        with object_lock.held(path, owner_record(), owner_has_ended, refusal):
            yield


def owner_of(folder: AnyPath) -> dict | None:
    """Who holds a folder's lock: pid, host, since; empty where it cannot be told.

    None where nobody does, or only a process that is known to have ended.
    """
    path = folder / NAME
    if not path.exists():
        return None
    owner = read_owner(path)
    silent = file_lock.is_expired(path, owner) if paths.is_local(path) else not object_lock.is_alive(path)
    return None if silent or owner_has_ended(owner) else owner


def require_held() -> None:
    """Raise InfrastructureError where a lock that is held here was taken by another command, or removed.

    To be called before anything is made final. The lock is renewed, so it holds for ten minutes from then.
    """
    lease.require_held()


@contextmanager
def held_for_cleaning(folder: AnyPath) -> Iterator[None]:
    """Hold the lock of all dates' work folder, for moments: each command ``wait``s for it as it starts."""
    with held(folder, _CLEANS):
        yield


def wait_until_free(folder: AnyPath, by: str = _CLEANS) -> None:
    """Wait until no living process holds a lock that is held for moments, such as that of ``cleaning``.

    Raises InfrastructureError, naming process and file, where it is still held after a minute.
    """
    until = time.monotonic() + _PATIENCE_S
    while (owner := owner_of(folder)) is not None:
        if time.monotonic() > until:
            raise _refusal(folder / NAME, owner, by)
        time.sleep(0.05 if paths.is_local(folder) else 1.0)


def _refusal(path: AnyPath, owner: dict, by: str) -> InfrastructureError:
    who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}, since {owner.get('since', '?')}"
    return InfrastructureError(f"another command {by} ({who}): wait until it ends, or remove "
                               f"{path} if that process is no longer this job's")
