"""How a date at a URL is removed, where nothing can be renamed out of sight.

``begin`` takes a few requests, under the lock of all dates: the date is published no more. ``finish`` takes
as long as there are objects to delete, under the date's own lock: working files first, then snapshots. Killed
between the two, or within, the date says of itself that it is being removed, until nothing is left.
"""

from dare_job import files, lock, versions
from dare_job.workspace import Workspace


def begin(space: Workspace) -> None:
    """Hide the snapshots of a date from all that ask which are published."""
    lock.require_held()
    for folder in space.snapshots():
        versions.hide(folder)


def is_begun(space: Workspace) -> bool:
    """True for a date at a URL that is hidden and not removed to its end."""
    return not files.is_local(space.out) and any(map(versions.is_hidden, space.snapshots()))


def finish(space: Workspace) -> None:
    """Delete what is left of a date that was hidden; for who holds its lock, which stays."""
    names = files.listing(space.work)
    files.remove_below(space.work, [name for name in names if not name.startswith(lock.NAME)])
    for folder in space.snapshots():
        lock.require_held()
        versions.sweep_snapshot(folder)
