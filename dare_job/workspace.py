"""The folders of a run, and how a stage commits either its complete output or nothing.

    OUT/knowledge/entity=user|item/dt=D/   published snapshots (part-*.parquet, _manifest.json)
    OUT/features/entity=user|item/dt=D/    vectors and clusters of a published date (same layout)
    OUT/features/ids/entity=user|item/     ids of all entities that ever had features
    OUT/candidates/dt=D/                   top K items of each user (same layout)
    OUT/reports/dt=D/index.html            report of a published date (dare_job/publish/report)
    OUT/reports/index.html                 all dates, with links to their reports
    OUT/_work/dt=D/<stage>/                output of a stage, complete once it contains ``_done.json``
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date

from dare_job.schemas import ENTITIES
from dare_job.storage import atomic_folder, paths
from dare_job.storage.paths import AnyPath

DONE = "_done.json"
MANIFEST = "_manifest.json"
READ_DATES = "reads.json"
SHARD_PLAN = "_cut.json"  # shard plan of the stage generate, written before any row is generated
FILES = "_files"  # key of the done-record: number of data files that were committed


@dataclass(frozen=True)
class Workspace:
    """Folders of one date below ``out``, and the dates that it reads from."""

    out: AnyPath
    day: date
    _recorded: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def dt(self) -> str:
        return self.day.isoformat()

    @property
    def work(self) -> AnyPath:
        return self.out / "_work" / f"dt={self.dt}"

    @property
    def logs(self) -> AnyPath:
        """Folder of log files and stage times of the commands that ran on this date."""
        return self.work / "logs"

    def stage(self, name: str) -> AnyPath:
        """Folder of a stage's output, for example stage("plan") / "entity=user".

        At a URL this is the current version. Call again after the stage has committed a new one.
        """
        return atomic_folder.current(self.work / name)

    def knowledge(self, entity: str, dt: str | None = None) -> AnyPath:
        return self.out / "knowledge" / f"entity={entity}" / f"dt={dt or self.dt}"

    def features(self, entity: str, dt: str | None = None) -> AnyPath:
        return self.out / "features" / f"entity={entity}" / f"dt={dt or self.dt}"

    def candidates(self) -> AnyPath:
        return self.out / "candidates" / f"dt={self.dt}"

    def snapshots(self) -> list[AnyPath]:
        """Folders that the date publishes to: texts, features and candidates."""
        both = [folder(entity) for folder in (self.knowledge, self.features) for entity in ENTITIES]
        return [*both, self.candidates()]

    def feature_dates(self, entity: str) -> list[str]:
        """Dates with features of an entity type, ascending."""
        folders = paths.dated_folders(self.features(entity).parent)
        published = paths.map_paths(lambda folder: (folder / MANIFEST).exists(), folders)
        return [folder.name[3:] for folder, there in zip(folders, published, strict=True) if there]

    def feature_source_date(self, entity: str) -> str | None:
        """The date whose clusters and vectors this date reuses.

        The date itself, else the latest earlier date; in a backfill without an earlier one, the first later
        date. After ``record_read_dates``, the recorded date.
        """
        if self._recorded:
            return self._recorded["features"][ENTITIES.index(entity)]
        return self._find_feature_source(entity)

    def _find_feature_source(self, entity: str) -> str | None:
        dates = self.feature_dates(entity)
        return max((dt for dt in dates if dt <= self.dt), default=min(dates, default=None))

    def previous(self, entity: str) -> AnyPath | None:
        """Snapshot of the newest earlier date for which every entity type is published, or None.

        After ``record_read_dates`` this is the recorded date, whatever is published in the meantime.
        """
        newest = self._recorded["previous"] if self._recorded else self._find_previous()
        return self.knowledge(entity, newest) if newest else None

    def _find_previous(self) -> str | None:
        dates = [dt for dt in self._snapshot_dates() if dt < self.dt]
        return next(filter(self.is_published, reversed(dates)), None)

    def published_dates(self) -> list[str]:
        """Dates for which every entity type is published, ascending."""
        folders = [self.knowledge(ENTITIES[0], dt) for dt in self._snapshot_dates()]
        published = paths.map_paths(lambda folder: self.is_published(folder.name[3:]), folders)
        return [folder.name[3:] for folder, there in zip(folders, published, strict=True) if there]

    def newest_date(self) -> str | None:
        """The last of ``published_dates``, or None."""
        return next(filter(self.is_published, reversed(self._snapshot_dates())), None)

    def _snapshot_dates(self) -> list[str]:
        """Dates with a folder of the first entity type, ascending, published or not."""
        return [path.name[3:] for path in paths.dated_folders(self.knowledge(ENTITIES[0]).parent)]

    def is_published(self, dt: str) -> bool:
        """True if the snapshots of all entity types of a date are published."""
        return all((self.knowledge(entity, dt) / MANIFEST).exists() for entity in ENTITIES)

    def interrupted_dates(self) -> list[str]:
        """Earlier dates whose run was interrupted and can be resumed.

        These are the dates after the newest published one that have generated texts, and the newest
        published one if its entity types come from different runs.
        """
        newest = self.previous(ENTITIES[0])
        dates = (path for path in paths.dated_folders(self.work.parent)
                 if (newest.name if newest else "") < path.name < f"dt={self.dt}")
        interrupted = {path.name[3:] for path in dates if generation_started(path)}
        if newest and len(self._run_ids(newest.name[3:])) > 1:
            interrupted.add(newest.name[3:])
        return sorted(interrupted)

    def _run_ids(self, dt: str) -> set[str]:
        """Ids of the runs that published a date's snapshots: more than one if a run was interrupted."""
        runs = set()
        for entity in ENTITIES:
            with suppress(ValueError):  # commands that need a damaged manifest report it
                runs.add(json.loads((self.knowledge(entity, dt) / MANIFEST).read_text())["run_id"])
        return runs

    def record_read_dates(self) -> None:
        """Fix the dates that this run reads from and record them for ``clean``. Requires the date's lock.

        Repeats if a date was published in the meantime, as a concurrent ``clean`` may have seen the new date
        without the record.
        """
        paths.make_folder(self.logs)
        self._recorded.clear()
        while self._recorded != (current := self._current_reads()):
            write_json(self.logs / READ_DATES, current)
            self._recorded.update(current)

    def _current_reads(self) -> dict:
        return {"previous": self._find_previous(),
                "features": [self._find_feature_source(entity) for entity in ENTITIES]}

    def read_dates(self) -> set[str]:
        """Published dates that a command on this date reads: those recorded, and those it would pick now."""
        recorded, now = {}, self._current_reads()
        with suppress(OSError, ValueError, TypeError):
            recorded = dict(json.loads((self.logs / READ_DATES).read_text(encoding="utf-8")))
        dates = {now["previous"], *now["features"], recorded.get("previous"), *recorded.get("features", [])}
        return {dt for dt in dates if dt} - {self.dt}

    def clean_up(self) -> None:
        """Remove what a killed command left of this date. Requires the date's lock."""
        atomic_folder.clean_up_below(self.work)
        atomic_folder.clean_up(self.out / "reports" / f"dt={self.dt}")
        if (leftover := index_partial(self.out, self.dt)).exists():  # not where reports is a file
            leftover.unlink(missing_ok=True)
        for folder in self.snapshots():
            atomic_folder.clean_up(folder)


def generation_started(work: AnyPath) -> bool:
    """True if the stage generate has started; ``work`` is a date's folder below ``_work``."""
    generate = atomic_folder.current(work / "generate")
    return any((generate / name).exists() for name in (SHARD_PLAN, DONE))


def digest(value) -> str:
    """sha256 hex digest of a JSON-like value: the fingerprint of settings and inputs."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def is_done(folder: AnyPath, fingerprint: str) -> bool:
    """True if the folder holds a complete output with this fingerprint."""
    try:
        record = done_record(folder)
        return record["fingerprint"] == fingerprint and is_complete(atomic_folder.current(folder), record)
    except (OSError, ValueError, KeyError):
        return False


def is_complete(folder: AnyPath, record: dict) -> bool:
    """False if files of a finished stage were removed or truncated to nothing since it finished."""
    return record.get(FILES) in (None, _count_files(folder))


def _count_files(folder: AnyPath) -> int:
    """Number of non-empty files below a folder, without hidden files and metadata files."""
    if not paths.is_local(folder):
        return sum(1 for name, entry in paths.listing(folder).items()
                   if entry["size"] and not name.rpartition("/")[2].startswith((".", "_")))
    return sum(1 for path in folder.rglob("[!._]*") if path.is_file() and path.stat().st_size)


def done_record(folder: AnyPath) -> dict:
    """What the stage reported when it was committed."""
    return json.loads((atomic_folder.current(folder) / DONE).read_text())


@contextmanager
def committing(folder: AnyPath, fingerprint: str, record: dict) -> Iterator[AnyPath]:
    """Yield an empty staging folder, which replaces ``folder`` when the block succeeds.

    ``_done.json`` is written last, with ``record``, which the block may fill. If the block fails, ``folder``
    is unchanged.
    """
    staging = atomic_folder.stage_folder(folder)
    with atomic_folder.remove_on_error(staging):
        yield staging
        write_json(staging / DONE, {"fingerprint": fingerprint, FILES: _count_files(staging), **record})
        atomic_folder.replace(staging, folder)


def write_json(path: AnyPath, value) -> None:
    """Write a JSON file atomically."""
    with paths.atomic_writer(path, f".{path.name}.partial") as file:
        file.write(json.dumps(value, indent=1, sort_keys=True, default=str).encode())


def reports_index(out: AnyPath) -> AnyPath:
    """Path of the index of all reports."""
    return out / "reports" / "index.html"


def index_partial(out: AnyPath, writer: str) -> AnyPath:
    """Temporary file of ``reports_index``, by the date whose command writes it."""
    index = reports_index(out)
    return index.with_name(f".{index.name}.{writer}.partial")


def report_page(out: AnyPath, dt: str) -> AnyPath:
    """Path of the report of a date."""
    return out / "reports" / f"dt={dt}" / "index.html"
