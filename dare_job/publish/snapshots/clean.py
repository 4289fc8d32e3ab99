"""Removes old published dates with features and working files, never what a command on another date reads.

Commands and ``clean`` may start at any moment. A command takes its date's lock and then waits while a
``clean`` holds the lock of all dates; ``clean`` takes that lock and then looks which dates are locked. So it
sees each command that has started, and the others look for old text after it has moved away what goes. It
moves by renaming, under the lock of the date that goes, and deletes once all locks are given back:

    .dt=D.<token>.removed   beside where it was; nobody needs it again, the next ``clean`` deletes it

Killed between two renames, it leaves the date without working files, or with one entity type. That is what
the next ``clean`` finishes. At a URL, where nothing is renamed, it takes the manifests away (``removal``).

How a date at a URL is removed, where nothing can be renamed out of sight.

``begin`` takes a few requests, under the lock of all dates: the date is published no more. ``finish`` takes
as long as there are objects to delete, under the date's own lock: working files first, then snapshots. Killed
between the two, or within, the date says of itself that it is being removed, until nothing is left.
"""

import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date

from dare_job.errors import DataError, InfrastructureError
from dare_job.generate import shard_plan
from dare_job.schemas import ENTITIES
from dare_job.storage import atomic, lock, paths, versions
from dare_job.storage.paths import AnyPath, dated_folders, folder_date, is_local, listing
from dare_job.tables import published as tables_published
from dare_job.workspace import DONE, MANIFEST, SHARD_PLAN, Workspace, done_record


def begin(space: Workspace) -> None:
    """Hide the snapshots of a date from all that ask which are published."""
    lock.require_held()
    for folder in space.snapshots():
        versions.hide(folder)


def is_begun(space: Workspace) -> bool:
    """True for a date at a URL that is hidden and not removed to its end."""
    return not paths.is_local(space.out) and any(map(versions.is_hidden, space.snapshots()))


def finish(space: Workspace) -> None:
    """Delete what is left of a date that was hidden; for who holds its lock, which stays."""
    names = paths.listing(space.work)
    paths.remove_below(space.work, [name for name in names if not name.startswith(lock.NAME)])
    for folder in space.snapshots():
        lock.require_held()
        versions.clean_up_snapshot(folder)

_AGAIN = "was begun again and is not published since"


@dataclass(frozen=True)
class Verdict:
    """What happens to a date, and why. ``bytes`` of its snapshots and working files, where it goes."""

    date: str
    goes: bool
    reason: str
    bytes: int = 0


def clean(out: AnyPath, keep: int, dry_run: bool = False) -> dict:
    """Remove what is older than the ``keep`` newest published dates; returns what went, what stayed and why.

    Raises DataError where nothing is published, InfrastructureError where another ``clean`` is at work.
    """
    if not any(Workspace(out, date.max).published_dates()):
        raise DataError(f"{out} holds no published date; name the output folder of a run: --out FOLDER")
    if dry_run:
        verdicts = judge(out, keep)
    else:
        atomic.recover(out)
        with lock.held_for_cleaning(out / "_work"):
            verdicts = [_move(out, verdict) for verdict in judge(out, keep)]
        _delete(out, [verdict.date for verdict in verdicts if verdict.goes])
    gone = [verdict for verdict in verdicts if verdict.goes]
    return {"out": str(out), "keep": keep, "dry_run": dry_run,
            "bytes": sum(verdict.bytes for verdict in gone),
            "removed": [asdict(verdict) for verdict in gone],
            "kept": [asdict(verdict) for verdict in verdicts if not verdict.goes]}


def judge(out: AnyPath, keep: int) -> list[Verdict]:
    """A verdict on each date that has a snapshot or working files, ascending."""
    parents = [out / table / f"entity={entity}" for table in ("knowledge", "features") for entity in ENTITIES]
    folders = dated_folders(*parents, out / "candidates", out / "_work")
    dates = sorted({folder.name[3:] for folder in folders})
    published = Workspace(out, date.max).published_dates()
    newest = published[-keep:]
    read_by = _readers(out, dates, published[-1])
    verdicts = []
    for dt in dates:
        space = Workspace(out, date.fromisoformat(dt))
        reason = _why_kept(space, newest, read_by.get(dt))
        if reason:
            verdicts.append(Verdict(dt, False, reason))
        else:
            verdicts.append(Verdict(dt, True, f"older than the {keep} newest published dates", _bytes(space)))
    return verdicts


def _readers(out: AnyPath, dates: list[str], newest: str) -> dict[str, str]:
    """Dates whose text or features another one starts from, with the reason why that matters."""
    found: dict[str, str] = {}
    for entity in ENTITIES:
        for dt in Workspace(out, date.max).feature_dates(entity)[-1:]:
            found[dt] = f"its features of {entity}s are the newest: the next ones begin with them"
    for dt in dates:
        space = Workspace(out, date.fromisoformat(dt))
        reads = f"its text is read by {dt}, which"
        if busy := _busy(space):
            found |= dict.fromkeys(space.read_dates(), f"{reads} {busy}")
        elif _unpublished(space):
            found |= dict.fromkeys(space.read_dates(), f"{reads} is not published yet")
        elif _begun_again(space):
            found |= dict.fromkeys(space.read_dates(), f"{reads} {_AGAIN}")
        elif dt == newest:
            found |= {old: f"{reads} may be run again" for old in space.read_dates() if old not in found}
    return found


def _why_kept(space: Workspace, newest: list[str], read: str | None) -> str | None:
    """Why a date stays; None: it goes."""
    if space.dt in newest:
        return f"one of the {len(newest)} newest published dates"
    if space.dt > newest[0] and not is_begun(space):
        return "newer than the oldest date that is kept"
    if busy := _busy(space):
        return f"it {busy}"
    if is_begun(space):
        return None
    if _unpublished(space):
        return (f"it is not published: end it by `dare-job run --date {space.dt}` with its settings, or "
                f"remove {space.work} by hand")
    if _begun_again(space):
        return f"it {_AGAIN}: end it by `dare-job run --date {space.dt}` with its settings"
    foreign = [str(folder) for folder in map(space.knowledge, ENTITIES)
               if folder.exists() and not (folder / MANIFEST).exists()]
    return f"{foreign[0]} has no manifest, so no run wrote it" if foreign else read


def _busy(space: Workspace) -> str | None:
    """What a locked date is at; a lock of a process that has ended is none."""
    owner = lock.owner_of(space.work)
    if owner is None:
        return None
    return f"is being written (process {owner.get('pid', '?')} on {owner.get('host', '?')})"


def _unpublished(space: Workspace) -> bool:
    """True where a run was cut off that could go on: one of its date alone knows its texts."""
    begun = (space.stage("plan") / DONE, space.stage("generate") / SHARD_PLAN)
    unpublished = not space.is_published(space.dt) and not is_begun(space)
    return unpublished and any(path.exists() for path in begun)


def _begun_again(space: Workspace) -> bool:
    """True where stages of a published date ran again and publish has not: each is a command of its own."""
    work = shard_plan.read_plan(space.stage("generate"))
    try:
        found = tables_published.read_manifest(space.knowledge(ENTITIES[-1]))
        if work and found.get("cut", work.token) != work.token:
            return True
        planned = done_record(space.stage("plan"))["fingerprint"]
    except (OSError, ValueError, KeyError, DataError):
        return False
    return found.get("plan", planned) != planned


def _move(out: AnyPath, verdict: Verdict) -> Verdict:
    """Rename what goes, under the date's lock: working files first, so what is published goes as a whole."""
    if not verdict.goes:
        return verdict
    space = Workspace(out, date.fromisoformat(verdict.date))
    try:
        with lock.held(space.work):
            if not is_local(out):
                begin(space)
                return verdict
            space.clean_up()
            hidden = _hidden(space.work)
            hidden.mkdir()
            for path in sorted(space.work.iterdir()):
                if not path.name.startswith(lock.NAME):
                    os.rename(path, hidden / path.name)
            for folder in space.snapshots():
                if folder.exists():
                    os.rename(folder, _hidden(folder))
    except InfrastructureError as error:
        return Verdict(verdict.date, False, str(error))
    with suppress(OSError):  # another command is about to take the lock
        space.work.rmdir()
    return verdict


def _hidden(folder: AnyPath) -> AnyPath:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.removed")


def _delete(out: AnyPath, dates: list[str]) -> None:
    """Delete what was moved, also by a ``clean`` that was killed."""
    if not is_local(out):
        for dt in dates:
            space = Workspace(out, date.fromisoformat(dt))
            with suppress(InfrastructureError), lock.held(space.work, "removes this date"):
                if not space.is_published(dt) and not _unpublished(space):  # no command has written it anew
                    finish(space)
        return
    for pattern in ("knowledge/entity=*/.dt=*.removed", "features/entity=*/.dt=*.removed",
                    "candidates/.dt=*.removed", "_work/.dt=*.removed"):
        for folder in out.glob(pattern):
            if not folder_date(folder.name[1:].rsplit(".", 2)[0]):
                continue
            with suppress(FileNotFoundError):  # another `clean` deletes the same
                shutil.rmtree(folder)


def _bytes(space: Workspace) -> int:
    folders = [space.work, *space.snapshots()]
    if not is_local(space.out):
        return sum(entry["size"] for folder in folders for entry in listing(folder).values())
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
