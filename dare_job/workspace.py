"""Where a run keeps its files, and how a stage leaves either its complete output or none.

    OUT/knowledge/entity=user|item/dt=D/   published snapshots (part-*.parquet, _manifest.json)
    OUT/features/entity=user|item/dt=D/    vectors and clusters of a published date (part-*.parquet, the same)
    OUT/features/ids/entity=user|item/     ids of all that ever had features
    OUT/candidates/dt=D/                   top K items of each user (part-*.parquet, the same)
    OUT/reports/dt=D/index.html            what publish says of a date (dare_job/report)
    OUT/_work/dt=D/<stage>/                a stage's output, complete once ``_done.json`` is in it
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date

from dare_job.schemas import ENTITIES
from dare_job.storage import atomic, paths
from dare_job.storage.paths import AnyPath

DONE = "_done.json"
MANIFEST = "_manifest.json"
READ_DATES = "reads.json"
SHARD_PLAN = "_cut.json"  # of generate: what its work was cut into, there from its first moment on
FILES = "_files"  # in a done-record: how many files of data were committed


@dataclass(frozen=True)
class Workspace:
    out: AnyPath
    day: date
    _noted: dict = field(default_factory=dict, init=False, repr=False, compare=False)  # by ``note_reads``

    @property
    def dt(self) -> str:
        return self.day.isoformat()

    @property
    def work(self) -> AnyPath:
        return self.out / "_work" / f"dt={self.dt}"

    @property
    def logs(self) -> AnyPath:
        """Folder of what commands on this date say about themselves: log files, times."""
        return self.work / "logs"

    def stage(self, name: str) -> AnyPath:
        """Folder of a stage's output, for example stage("plan") / "entity=user".

        At a URL it is the version in force now: ask again once the stage has committed another.
        """
        return atomic.current(self.work / name)

    def knowledge(self, entity: str, dt: str | None = None) -> AnyPath:
        return self.out / "knowledge" / f"entity={entity}" / f"dt={dt or self.dt}"

    def features(self, entity: str, dt: str | None = None) -> AnyPath:
        return self.out / "features" / f"entity={entity}" / f"dt={dt or self.dt}"

    def candidates(self) -> AnyPath:
        return self.out / "candidates" / f"dt={self.dt}"

    def snapshots(self) -> list[AnyPath]:
        """Folders of what is published of the date: texts, features and candidates."""
        both = [folder(entity) for folder in (self.knowledge, self.features) for entity in ENTITIES]
        return [*both, self.candidates()]

    def encoded(self, entity: str) -> list[str]:
        """Dates with features of an entity type, ascending."""
        folders = paths.dated_folders(self.features(entity).parent)
        there = paths.map_paths(lambda folder: (folder / MANIFEST).exists(), folders)
        return [folder.name[3:] for folder, found in zip(folders, there, strict=True) if found]

    def encoded_before(self, entity: str) -> str | None:
        """The date whose clusters and vectors this one's features take: its own, else the nearest one.

        Earlier ones come first; those behind it count where there is none before, as in a backfill. After
        ``note_reads`` it is the date that was noted.
        """
        if self._noted:
            return self._noted["features"][ENTITIES.index(entity)]
        return self._encoded_before(entity)

    def _encoded_before(self, entity: str) -> str | None:
        dates = self.encoded(entity)
        return max((dt for dt in dates if dt <= self.dt), default=min(dates, default=None))

    def previous(self, entity: str) -> AnyPath | None:
        """Snapshot of the newest date before this one for which every entity type is published, or None.

        After ``note_reads`` it is the date that was noted, whatever is published meanwhile.
        """
        newest = self._noted["previous"] if self._noted else self._newest_before()
        return self.knowledge(entity, newest) if newest else None

    def _newest_before(self) -> str | None:
        dates = [dt for dt in self._begun() if dt < self.dt]
        return next(filter(self.published, reversed(dates)), None)

    def dates(self) -> list[str]:
        """Dates for which every entity type is published, ascending."""
        folders = [self.knowledge(ENTITIES[0], dt) for dt in self._begun()]
        published = paths.map_paths(lambda folder: self.published(folder.name[3:]), folders)
        return [folder.name[3:] for folder, there in zip(folders, published, strict=True) if there]

    def newest(self) -> str | None:
        """The last of ``dates``, or None."""
        return next(filter(self.published, reversed(self._begun())), None)

    def _begun(self) -> list[str]:
        """Dates with a folder of the first entity type, ascending, published or not."""
        return [path.name[3:] for path in paths.dated_folders(self.knowledge(ENTITIES[0]).parent)]

    def published(self, dt: str) -> bool:
        """True where the snapshots of all entity types of a date are there."""
        return all((self.knowledge(entity, dt) / MANIFEST).exists() for entity in ENTITIES)

    def unpublished(self) -> list[str]:
        """Dates before this one that were cut off and can go on.

        Those after the newest published of which texts are written, and that one where its entity types come
        from different runs.
        """
        newest = self.previous(ENTITIES[0])
        dates = (path for path in paths.dated_folders(self.work.parent)
                 if (newest.name if newest else "") < path.name < f"dt={self.dt}")
        found = {path.name[3:] for path in dates if generation_started(path)}
        if newest and len(self._runs(newest.name[3:])) > 1:
            found.add(newest.name[3:])
        return sorted(found)

    def _runs(self, dt: str) -> set[str]:
        """The runs that published a date's snapshots: one for all entity types, unless it was cut off."""
        runs = set()
        for entity in ENTITIES:
            with suppress(ValueError):  # a damaged manifest is named by who needs it
                runs.add(json.loads((self.knowledge(entity, dt) / MANIFEST).read_text())["run_id"])
        return runs

    def note_reads(self) -> None:
        """Settle which dates this one starts from, and write it down for ``clean``; who holds the lock.

        Once more where a date was published meanwhile: a ``clean`` may have seen that one, and no note.
        """
        paths.make_folder(self.logs)
        self._noted.clear()
        while self._noted != (found := self._reads_now()):
            write_json(self.logs / READ_DATES, found)
            self._noted.update(found)

    def _reads_now(self) -> dict:
        return {"previous": self._newest_before(),
                "features": [self._encoded_before(entity) for entity in ENTITIES]}

    def reads(self) -> set[str]:
        """Published dates that a command on this one reads: as it noted, and as it would find now."""
        noted, now = {}, self._reads_now()
        with suppress(OSError, ValueError, TypeError):
            noted = dict(json.loads((self.logs / READ_DATES).read_text(encoding="utf-8")))
        found = {now["previous"], *now["features"], noted.get("previous"), *noted.get("features", [])}
        return {dt for dt in found if dt} - {self.dt}

    def settle(self) -> None:
        """Tidy up what a killed command left of this date; only for who holds the date's lock."""
        atomic.clean_up_below(self.work)
        atomic.clean_up(self.out / "reports" / f"dt={self.dt}")
        for folder in self.snapshots():
            atomic.clean_up(folder)


def generation_started(work: AnyPath) -> bool:
    """True from the first moment of generate on, given a date's folder below ``_work``."""
    generate = atomic.current(work / "generate")
    return any((generate / name).exists() for name in (SHARD_PLAN, DONE))


def digest(value) -> str:
    """sha256 hex digest of a JSON-like value: the fingerprint of settings and inputs."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def is_done(folder: AnyPath, fingerprint: str) -> bool:
    """True where a complete output with the same fingerprint is there already."""
    try:
        record = done_record(folder)
        return record["fingerprint"] == fingerprint and is_complete(atomic.current(folder), record)
    except (OSError, ValueError, KeyError):
        return False


def is_complete(folder: AnyPath, record: dict) -> bool:
    """False where files of a finished stage were removed or emptied since."""
    return record.get(FILES) in (None, _count_files(folder))


def _count_files(folder: AnyPath) -> int:
    """Number of files with content below a folder, hidden ones and book-keeping not counted."""
    if not paths.is_local(folder):
        return sum(1 for name, entry in paths.listing(folder).items()
                   if entry["size"] and not name.rpartition("/")[2].startswith((".", "_")))
    return sum(1 for path in folder.rglob("[!._]*") if path.is_file() and path.stat().st_size)


def done_record(folder: AnyPath) -> dict:
    """What the stage reported when it was committed."""
    return json.loads((atomic.current(folder) / DONE).read_text())


@contextmanager
def committing(folder: AnyPath, fingerprint: str, record: dict) -> Iterator[AnyPath]:
    """Yield an empty staging folder; on success ``_done.json`` goes in and it replaces ``folder``.

    ``record`` may be filled inside the block. On an error nothing of ``folder`` changes.
    """
    staging = atomic.stage_folder(folder)
    with atomic.remove_on_error(staging):
        yield staging
        write_json(staging / DONE, {"fingerprint": fingerprint, FILES: _count_files(staging), **record})
        atomic.replace(staging, folder)


def write_json(path: AnyPath, value) -> None:
    """Write a JSON file that is either complete or absent."""
    with paths.atomic_writer(path, f".{path.name}.partial") as file:
        file.write(json.dumps(value, indent=1, sort_keys=True, default=str).encode())


def report_page(out: AnyPath, dt: str) -> AnyPath:
    """Path of the report of a date."""
    return out / "reports" / f"dt={dt}" / "index.html"
