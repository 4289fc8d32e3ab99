"""Removes old published dates with their features and working files, except those that another command needs.

Commands and ``clean`` may run at the same time. A command takes the lock of its date, then waits while a
``clean`` holds the lock of all dates. ``clean`` takes the lock of all dates, then looks which dates are
locked. Therefore ``clean`` sees every command that has started, and later commands look for previous texts
only after ``clean`` has moved dates away. It renames them, under the lock of the date, and deletes them after
it has released all locks:

    .dt=D.<token>.removed   next to the original folder; if ``clean`` is killed, the next one deletes it

If ``clean`` is killed between two renames, the date lacks its working files or one entity type, and the next
``clean`` finishes. At a URL, where nothing can be renamed, ``hide`` hides the date's manifests, and
``delete_hidden`` deletes the objects under the date's own lock: working files first, then the snapshots.
"""

import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime

from dare_job.errors import ConfigError, DataError, InfrastructureError
from dare_job.generate import shard_plan
from dare_job.publish.report import date_index
from dare_job.schemas import ENTITIES
from dare_job.storage import atomic_folder, lock, paths, versions
from dare_job.storage.paths import AnyPath, dated_folders, folder_date, is_local
from dare_job.tables import published
from dare_job.workspace import (
    DONE,
    MANIFEST,
    SHARD_PLAN,
    Workspace,
    done_record,
    reports_index,
)


def hide(space: Workspace) -> None:
    """Hide the snapshots of a date at a URL, which is then no longer published."""
    lock.require_held()
    for folder in space.snapshots():
        versions.hide(folder)


def is_hidden(space: Workspace) -> bool:
    """Whether a date at a URL is hidden, but not completely deleted."""
    return not is_local(space.out) and any(map(versions.is_hidden, space.snapshots()))


def delete_hidden(space: Workspace) -> None:
    """Delete the rest of a hidden date, except for its lock, which the caller holds."""
    names = paths.listing(space.work)
    paths.remove_below(space.work, [name for name in names if not name.startswith(lock.NAME)])
    for folder in space.snapshots():
        lock.require_held()
        versions.clean_up_snapshot(folder)


_AGAIN = "was run again and has not been published since"


@dataclass(frozen=True)
class Decision:
    """Whether a date is removed, and why; ``bytes``: size of what is removed."""

    date: str
    goes: bool
    reason: str
    bytes: int = 0


def _today() -> date:
    return datetime.now(UTC).date()


@dataclass(frozen=True)
class Retention:
    """Which published dates stay: those that both rules keep, and always the newest one.

    Attributes
    ----------
    keep
        Number of newest published dates that stay; None: any number.
    older_than
        Dates more than so many days before ``today`` go, with their reports; None: no date is too old.
    today
        Default: today's date (UTC).
    """

    keep: int | None = None
    older_than: int | None = None
    today: date = field(default_factory=lambda: _today())

    def __post_init__(self) -> None:
        if self.keep is None and self.older_than is None:
            raise ConfigError("clean needs --keep N, the number of dates to keep, or --older-than DAYS")

    def newest(self, published_dates: list[str]) -> list[str]:
        """The published dates (ascending) that stay by both rules."""
        newest = published_dates[-self.keep:] if self.keep else published_dates
        return [dt for dt in newest if not self.is_too_old(dt)] or newest[-1:]

    def is_too_old(self, dt: str) -> bool:
        """Whether a date is older than ``older_than`` days."""
        return self.older_than is not None and (self.today - date.fromisoformat(dt)).days > self.older_than

    def why_kept(self, dt: str, newest: list[str]) -> str:
        """Why a date of ``newest`` stays."""
        if self.is_too_old(dt):
            return "the newest published date"
        if self.keep is None:
            return f"not more than {self.older_than} days before {self.today}"
        return f"one of the {len(newest)} newest published dates"

    def why_removed(self, dt: str) -> str:
        if self.is_too_old(dt):
            return f"more than {self.older_than} days before {self.today}"
        return f"older than the {self.keep} newest published dates"


def clean(out: AnyPath, keep: int | None, dry_run: bool = False, older_than: int | None = None) -> dict:
    """Remove the dates that a ``Retention`` does not keep; return what was removed or kept, and why.

    Raises
    ------
    ConfigError
        Neither rule is given.
    DataError
        Nothing is published.
    InfrastructureError
        Another ``clean`` is running.
    """
    retention = Retention(keep, older_than)
    if not any(Workspace(out, date.max).published_dates()):
        raise DataError(f"{out} has no published date; name the output folder of a run: --out FOLDER")
    if dry_run:
        decisions = decide(out, retention)
    else:
        atomic_folder.recover(out)
        with lock.held_for_cleaning(out / "_work"):
            decisions = [_move(out, decision) for decision in decide(out, retention)]
        _delete(out, [decision.date for decision in decisions if decision.goes])
    pages = _old_reports(out, retention, {decision.date for decision in decisions if not decision.goes})
    if not dry_run:
        for folder in pages:
            paths.remove_tree(folder)
        if reports_index(out).exists():
            date_index.write_or_warn(out)
    gone = [decision for decision in decisions if decision.goes]
    return {"out": str(out), "keep": keep, "older_than": older_than, "dry_run": dry_run,
            "reports": [folder.name[3:] for folder in pages],
            "bytes": sum(decision.bytes for decision in gone),
            "removed": [asdict(decision) for decision in gone],
            "kept": [asdict(decision) for decision in decisions if not decision.goes]}


def _old_reports(out: AnyPath, retention: Retention, kept: set[str]) -> list[AnyPath]:
    """Folders of the reports that are too old: they show texts. Without an age, reports stay."""
    folders = dated_folders(out / "reports")
    return [folder for folder in folders if retention.is_too_old(folder.name[3:])
            and folder.name[3:] not in kept]


def decide(out: AnyPath, retention: Retention) -> list[Decision]:
    """A decision for each date that has a snapshot or working files, ascending."""
    parents = [out / table / f"entity={entity}" for table in ("knowledge", "features") for entity in ENTITIES]
    folders = dated_folders(*parents, out / "candidates", out / "_work")
    dates = sorted({folder.name[3:] for folder in folders})
    newest = retention.newest(Workspace(out, date.max).published_dates())
    readers, decisions = _readers(out, dates, newest[-1]), []
    for dt in dates:
        space = Workspace(out, date.fromisoformat(dt))
        if dt in newest:
            decisions.append(Decision(dt, False, retention.why_kept(dt, newest)))
        elif reason := _why_kept(space, newest, readers.get(dt)):
            decisions.append(Decision(dt, False, reason))
        else:
            decisions.append(Decision(dt, True, retention.why_removed(dt), _bytes(space)))
    return decisions


def _readers(out: AnyPath, dates: list[str], newest: str) -> dict[str, str]:
    """Dates whose texts or features another date needs, with the reason to keep them."""
    readers: dict[str, str] = {}
    for entity in ENTITIES:
        for dt in Workspace(out, date.max).feature_dates(entity)[-1:]:
            readers[dt] = f"its features of {entity}s are the newest, and the next features start from them"
    for dt in dates:
        space = Workspace(out, date.fromisoformat(dt))
        reads = f"its texts are drafts for {dt}, which"
        if busy := _busy(space):
            readers |= dict.fromkeys(space.read_dates(), f"{reads} {busy}")
        elif _unpublished(space):
            readers |= dict.fromkeys(space.read_dates(), f"{reads} is not published yet")
        elif _runs_again(space):
            readers |= dict.fromkeys(space.read_dates(), f"{reads} {_AGAIN}")
        elif dt == newest:
            readers |= {old: f"{reads} may be run again" for old in space.read_dates() if old not in readers}
    return readers


def _why_kept(space: Workspace, newest: list[str], read: str | None) -> str | None:
    """The reason to keep a date that is not one of the newest; None to remove it."""
    if space.dt > newest[0] and not is_hidden(space):
        return "newer than the oldest kept date"
    if busy := _busy(space):
        return f"it {busy}"
    if is_hidden(space):
        return None
    if _unpublished(space):
        return (f"it is not published: finish it with `dare-job run --date {space.dt}` and its settings, "
                f"or remove {space.work}")
    if _runs_again(space):
        return f"it {_AGAIN}: finish it with `dare-job run --date {space.dt}` and its settings"
    foreign = [str(folder) for folder in map(space.knowledge, ENTITIES)
               if folder.exists() and not (folder / MANIFEST).exists()]
    return f"{foreign[0]} has no manifest, so it is not the output of a run" if foreign else read


def _busy(space: Workspace) -> str | None:
    """What is happening to a locked date; None if it is not locked by a live process."""
    owner = lock.owner_of(space.work)
    if owner is None:
        return None
    return f"is being written (process {owner.get('pid', '?')} on {owner.get('host', '?')})"


def _unpublished(space: Workspace) -> bool:
    """Whether an interrupted run of the date could still be continued."""
    begun = (space.stage("plan") / DONE, space.stage("generate") / SHARD_PLAN)
    unpublished = not space.is_published(space.dt) and not is_hidden(space)
    return unpublished and any(path.exists() for path in begun)


def _runs_again(space: Workspace) -> bool:
    """Whether stages of a published date ran again, but not the stage publish."""
    work = shard_plan.read_plan(space.stage("generate"))
    try:
        manifest = published.read_manifest(space.knowledge(ENTITIES[-1]))
        if work and manifest.get("cut", work.token) != work.token:
            return True
        planned = done_record(space.stage("plan"))["fingerprint"]
    except (OSError, ValueError, KeyError, DataError):
        return False
    return manifest.get("plan", planned) != planned


def _move(out: AnyPath, decision: Decision) -> Decision:
    """Rename the folders of a date, under its lock: working files first, then the snapshots."""
    if not decision.goes:
        return decision
    space = Workspace(out, date.fromisoformat(decision.date))
    try:
        with lock.held(space.work):
            if not is_local(out):
                hide(space)
                return decision
            space.clean_up()
            hidden = _removed_name(space.work)
            hidden.mkdir()
            for path in sorted(space.work.iterdir()):
                if not path.name.startswith(lock.NAME):
                    os.rename(path, hidden / path.name)
            for folder in space.snapshots():
                if folder.exists():
                    os.rename(folder, _removed_name(folder))
    except InfrastructureError as error:
        return Decision(decision.date, False, str(error))
    with suppress(OSError):  # another command is about to take the lock
        space.work.rmdir()
    return decision


def _removed_name(folder: AnyPath) -> AnyPath:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.removed")


def _delete(out: AnyPath, dates: list[str]) -> None:
    """Delete what this ``clean``, or one that was killed, has moved or hidden."""
    if not is_local(out):
        for dt in dates:
            space = Workspace(out, date.fromisoformat(dt))
            with suppress(InfrastructureError), lock.held(space.work, "removes this date"):
                if not space.is_published(dt) and not _unpublished(space):  # still removed
                    delete_hidden(space)
        return
    delete_moved(out)


def delete_moved(out: AnyPath) -> None:
    """Delete the folders on a disk that a ``clean`` has moved."""
    for pattern in ("knowledge/entity=*/.dt=*.removed", "features/entity=*/.dt=*.removed",
                    "candidates/.dt=*.removed", "_work/.dt=*.removed"):
        for folder in out.glob(pattern):
            if not folder_date(folder.name[1:].rsplit(".", 2)[0]):
                continue
            with suppress(FileNotFoundError):  # another `clean` deletes it, too
                shutil.rmtree(folder)


def _bytes(space: Workspace) -> int:
    folders = [space.work, *space.snapshots()]
    if not is_local(space.out):
        return sum(entry["size"] for folder in folders for entry in paths.listing(folder).values())
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
