"""Erases entities from an output folder, step by step, so that the same command finishes what was killed.

1. Remember ids and texts (``subjects.STATE``). What an interrupted erasure had remembered is erased as well.
2. Search all files, and remove what is found.
3. Search all files again. Nothing may be found.
4. Forget ids and texts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from pathlib import Path

from dare_job.errors import ConfigError, DataError, InfrastructureError
from dare_job.observe import progress
from dare_job.publish.erase import mentions, subjects
from dare_job.publish.erase.remove import Removal
from dare_job.publish.erase.search import Hit, Search, texts_of
from dare_job.publish.erase.subjects import Subjects
from dare_job.publish.report import date_index
from dare_job.publish.snapshots import clean
from dare_job.storage import atomic_folder, lock
from dare_job.storage.paths import AnyPath, dated_folders, is_local
from dare_job.workspace import Workspace, reports_index

_NAMED = 20  # files that the error names


def erase(out: AnyPath, wanted: Subjects) -> dict:
    """Erase entities from an output folder, and search it; returns what was removed and searched.

    Raises
    ------
    ConfigError
        As ``require_folder``.
    DataError
        It is not the output folder of a run, or the search has found something that no run wrote.
    InfrastructureError
        Another command writes to the folder.
    """
    require_folder(out)
    if not any((out / name).is_dir() for name in ("knowledge", "_work")):
        raise DataError(f"{out} is not the output folder of a run: it has neither knowledge nor _work")
    with _alone(out):
        before = subjects.read_state(out)
        everyone = wanted | before if before else wanted
        with progress.doing("looking for texts"):
            everyone = everyone.with_texts(texts_of(out, everyone))
        subjects.write_state(out, everyone)
        removed, owners = _remove(out, everyone)
        with progress.doing("searching all files"):
            search = Search(out, everyone)
            _require_nothing(out, list(search.hits()))
        subjects.remove_state(out)
    return {"out": str(out), "erased": everyone.names(), "resumed": before is not None, "removed": removed,
            "not_found": [name for name in everyone.names() if name not in owners],
            "searched": {**asdict(search.searched), "texts": len(everyone.texts)},
            "by_type_only": sorted(name for name in everyone.names()
                                   if not mentions.is_distinctive(name.partition(":")[2]))}


def require_folder(out: AnyPath) -> None:
    """Check that entities can be erased from a place.

    Raises
    ------
    ConfigError
        It is at a URL, or no folder.
    """
    if not is_local(out):
        raise ConfigError(
            f"{out}: `dare-job data erase` works on a local disk. At a URL, copy the folder to a disk, erase "
            "there, and replace the folder at the URL with the copy while no command runs; delete old "
            "versions of its objects as well, if the store keeps them")
    if not out.is_dir():
        raise ConfigError(f"{out} is not a folder: name the output folder of the runs")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the lock of all dates, for which every command waits, while no command holds that of a date."""
    atomic_folder.recover(out)
    with lock.held_for_cleaning(out / "_work"):
        for work in dated_folders(out / "_work"):
            if owner := lock.owner_of(work):
                raise InfrastructureError(
                    f"{work.name[3:]} is being written (process {owner.get('pid', '?')} on "
                    f"{owner.get('host', '?')}): erase when no other command runs on {out}")
        clean.delete_moved(out)
        tables = ("knowledge/entity=*", "features/entity=*", "candidates", "_work", "reports")
        folders = dated_folders(*(parent for name in tables for parent in out.glob(name)))
        for dt in sorted({folder.name[3:] for folder in folders}):
            Workspace(out, date.fromisoformat(dt)).clean_up()
        yield


def _remove(out: Path, everyone: Subjects) -> tuple[dict[str, int], set[str]]:
    """Remove entities; returns what was removed, and the entities that tables had."""
    search = Search(out, everyone)
    removal = Removal(out, everyone, search)
    with progress.doing("removing data that no search finds"):
        removal.delete_unsearchable()
    with progress.doing("looking for data"):
        hits = list(search.hits())
    with progress.doing("removing data"):
        removal.remove(hits)
    if removal.counts["reports"] and reports_index(out).exists():
        date_index.write_or_warn(out)
    return dict(removal.counts), search.owners


def _require_nothing(out: Path, hits: list[Hit]) -> None:
    if not hits:
        return
    named = "; ".join(f"{hit.path} ({hit.what})" for hit in hits[:_NAMED])
    more = f" and {len(hits) - _NAMED} more" if len(hits) > _NAMED else ""
    raise DataError(
        f"{len(hits)} files still mention what was erased, and no run wrote them in this form: "
        f"{named}{more}. Remove these files, or what they mention, and run the command again. Until then "
        f"{out / '_work' / subjects.STATE} keeps the ids and texts for the search")

