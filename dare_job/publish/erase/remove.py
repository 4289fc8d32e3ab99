"""Removes entities from the files that a search has found. Files and snapshots are replaced atomically.

    published dates      rewritten without the rows; the manifest counts what is left
    features/ids         the id is replaced by ``erased-<random>``; the numbers of all entities stay
    _work/dt=D           rows and list entries are removed; what a search cannot prove clean is deleted: pools
                         and indexes of waves hold texts without ids, logs and rejected rows quote the input
    reports              written again; deleted if their date is no longer published
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.publish import report
from dare_job.publish.erase import mentions, tables
from dare_job.publish.erase.search import Hit, Search, entity_beside, files_below
from dare_job.publish.erase.subjects import Subjects
from dare_job.storage import atomic_folder, lock, paths
from dare_job.tables import published
from dare_job.workspace import DONE, MANIFEST, READ_DATES, SHARD_PLAN, report_page, write_json

_LOG = logging.getLogger("dare_job")
_WHOLE = ("pools", "encode", "recommend")  # stages whose folders are deleted; they are made again if needed
_OLD_PLAN = "erased"  # fingerprint of a shard plan from which rows were erased: the next run makes a new one


class Removal:
    """Removes entities from one output folder. ``counts``: rows, logs, files and folders so far."""

    def __init__(self, out: Path, subjects: Subjects, search: Search):
        self._out, self._subjects, self._search = out, subjects, search
        self._works = working_folders(out)
        self.counts: Counter[str] = Counter()

    def remove(self, hits: Iterable[Hit]) -> None:
        """Remove what a search has found, except from files that no run writes."""
        hits, snapshots = [hit.path for hit in hits], set()
        works = {work for path in hits if (work := self._work_of(path))}
        for work in works:
            self._invalidate(work, hits)
        for path in hits:
            lock.require_held()
            if work := self._work_of(path):
                self._clean_work_file(work, path)
            elif (path.parent / MANIFEST).exists():
                snapshots.add(path.parent)
            elif path.parent.parent == self._out / "features" / "ids":
                self._mask(path)
        for name in sorted({folder.name for folder in snapshots}):
            self._clean_snapshots([folder for folder in snapshots if folder.name == name])
        pages = {path for path in hits if path.is_relative_to(self._out / "reports")}
        dates = {folder.name for folder in (*snapshots, *works, *(page.parent for page in pages))}
        self._clean_reports(sorted(date for date in map(paths.folder_date, dates) if date), pages)

    def delete_unsearchable(self) -> None:
        """Delete pools, indexes of waves, logs, rejected rows, copies of input tables and what killed writers
        left, of all dates: a search does not find everything that they hold of an entity.
        """
        for work in sorted(self._works):
            for folder in (work / "pools", work / "generate" / "waves"):
                if folder.exists():
                    self._delete(folder)
            for copy in sorted((work / "input").glob(".*")):  # with the input's columns
                self._delete(copy)
            for leftover in filter(_is_partial, files_below(work)):
                leftover.unlink()
            for log in sorted((work / "logs").glob("*.jsonl")):
                lock.require_held()
                log.unlink()
                self.counts["logs"] += 1
            for rejects in sorted((work / "input" / "rejects.parquet").glob("*.parquet")):
                with suppress(pa.ArrowException):  # damaged; the proof names it
                    if tables.has_owned(rejects, None, self._subjects):  # the number of files stays
                        self._count_rows(tables.rewrite(rejects, rejects, None, self._subjects))
        for left in sorted((self._out / "features" / "ids").glob(f"entity=*/{lock.NAME}")):
            with lock.held(left.parent, "numbers entities"):
                pass  # of a killed command: the lock is taken over, and removed here

    def _delete(self, path: Path) -> None:
        """Delete a folder, or a file in its place; of a link also what it leads to."""
        lock.require_held()
        real = path.resolve()
        if real.is_dir():
            (real / DONE).unlink(missing_ok=True)  # so that a partly deleted folder counts as unfinished
            shutil.rmtree(real)
        path.unlink(missing_ok=True)
        self.counts["folders"] += 1

    def _work_of(self, path: Path) -> Path | None:
        """The working folder of a date that a file is in."""
        return next((folder for folder in path.parents if folder in self._works), None)

    def _invalidate(self, work: Path, hits: list[Path]) -> None:
        """Before rows of the stage generate are removed, mark its counts as old. Finished texts are kept."""
        generate = work / "generate"
        if not any(path.is_relative_to(generate) for path in hits):
            return
        (generate / DONE).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            plan = _json(generate / SHARD_PLAN)
            if plan.get("fingerprint") != _OLD_PLAN:
                write_json(generate / SHARD_PLAN, plan | {"fingerprint": _OLD_PLAN})
        if (generate / "cut").exists():  # prompts and previous tokens of rows; a new plan has its own
            self._delete(generate / "cut")

    def _clean_work_file(self, work: Path, path: Path) -> None:
        stage = work / path.relative_to(work).parts[0]
        if stage.name in _WHOLE and stage.is_dir():
            self._delete(stage)
        elif not path.exists():
            return  # deleted with its folder
        elif tables.is_table(path):
            with suppress(pa.ArrowException):  # damaged; the proof names it
                removed = tables.rewrite(path, path, entity_beside(self._out, path), self._subjects)
                self._count_rows(removed)
        elif path.suffix == ".json":
            with suppress(ValueError):  # damaged; the proof names it
                self._clean_json(path, _json(path))

    def _count_rows(self, removed: pa.Table) -> None:
        self.counts["rows"] += len(removed)
        self.counts["files"] += 1

    def _clean_json(self, path: Path, value) -> None:
        write_json(path, mentions.json_without(value, self._search.mentions, entity_beside(self._out, path)))
        self.counts["files"] += 1

    def _mask(self, path: Path) -> None:
        """Replace ids in the table of dense ids. Its rows stay, because a row's number is its dense id."""
        entity = entity_beside(self._out, path)
        folder = path.parent
        with lock.held(folder, "numbers entities"):
            table = pq.read_table(path, columns=["entity_id", "id"], partitioning=None)
            mask = tables.owned(table, entity, self._subjects).combine_chunks()
            count = pc.sum(mask).as_py()
            masked = [f"{mentions.ERASED}-{secrets.token_hex(8)}" for _ in range(count)]
            ids = pc.replace_with_mask(table["entity_id"].combine_chunks(), mask,
                                       pa.array(masked, pa.string()))
            table = table.set_column(0, table.schema.field("entity_id"), ids)
            with paths.atomic_writer(path, f".{path.name}.partial") as file:
                pq.write_table(table, file, compression="zstd")
        self.counts["ids"] += count

    def _clean_snapshots(self, folders: list[Path]) -> None:
        """Replace the published folders of a date: texts of users first, as in a publication."""
        order = sorted(folders, key=lambda at: ("knowledge" not in at.parts, "entity=item" in at.parts))
        with ExitStack() as failing:
            staged = {self._stage(folder, failing): folder for folder in order}
            lock.require_held()
            atomic_folder.publish(staged)

    def _stage(self, folder: Path, failing: ExitStack) -> Path:
        """A copy of a folder without the rows. Unchanged files are linked; tables have new names."""
        staging = atomic_folder.stage_folder(folder)
        failing.enter_context(atomic_folder.remove_on_error(staging))
        manifest, removed, files = published.read_manifest(folder), [], {}
        prefix = f"part-{secrets.token_hex(4)}"
        names = {path.name: f"{prefix}-{number:05d}.parquet"
                 for number, path in enumerate(sorted(folder.glob("*.parquet")))}
        for path in sorted(folder.iterdir()):
            target = staging / names.get(path.name, path.name)
            rows = self._copy(path, target)
            if rows is not None:
                removed.append(rows)
            if entry := manifest.get("files", {}).get(path.name):
                files[target.name] = entry if rows is None else _entry(target)
        if "files" in manifest:
            manifest["files"] = files
        self._write_manifest(staging, folder, manifest, removed)
        return staging

    def _copy(self, path: Path, target: Path) -> pa.Table | None:
        """Copy a file of a snapshot; returns the rows that the copy lacks, None if it is the same."""
        if path.name == MANIFEST:
            return None
        if path.is_dir():
            shutil.copytree(path, target, copy_function=_link)
            return None
        entity = entity_beside(self._out, path)
        if not (tables.is_table(path) and tables.has_owned(path, entity, self._subjects)):
            _link(path, target)
            return None
        rows = tables.rewrite(path, target, entity, self._subjects)
        self._count_rows(rows)
        return rows

    def _write_manifest(self, staging: Path, folder: Path, manifest: dict, removed: list[pa.Table]) -> None:
        entity = tables.entity_of(folder.relative_to(self._out).as_posix(), manifest)
        manifest = mentions.json_without(manifest, self._search.mentions, entity)
        rows = sum(map(len, removed))
        if removed and "counts" in manifest:
            counts = Counter(dict(manifest["counts"]))
            counts.subtract(_counted(pa.concat_tables(removed), manifest.get("date")))
            manifest["counts"] = {name: max(0, counts[name]) for name in manifest["counts"]}
        before = manifest.get("erased", {"rows": 0})["rows"]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(staging / MANIFEST, manifest | {"erased": {"rows": before + rows, "last": now}})

    def _clean_reports(self, dates: list[str], mentioning: set[Path]) -> None:
        """Write the reports of dates again; delete those that cannot be written and mention an entity."""
        for dt in dates:
            page = report_page(self._out, dt)
            if not page.exists():
                continue
            lock.require_held()
            try:
                report.write(self._out, dt)
            except Exception as error:
                if page not in mentioning:
                    continue
                _LOG.warning("the report of %s was deleted, because it cannot be written again: %s", dt,
                             error)
                page.unlink()
            self.counts["reports"] += 1


def working_folders(out: Path) -> set[Path]:
    """Working folders of dates, also of those that a roll back has moved to another place below OUT."""
    moved = {path.parent.parent for path in files_below(out)
             if path.name == READ_DATES and path.parent.name == "logs"}
    return moved | set(paths.dated_folders(out / "_work"))


def _is_partial(path: Path) -> bool:
    """Whether a killed writer left a file."""
    return path.name.startswith(".") and path.name.endswith(".partial")


def _json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def _counted(rows: pa.Table, dt: str | None) -> dict[str, int]:
    """What a manifest counts of removed rows, by its names, for all kinds of snapshots."""
    def count(mask) -> int:
        return pc.sum(mask).as_py() or 0

    names, counted = rows.column_names, {"rows": len(rows)}
    if "error" in names:
        counted["errors"] = len(rows) - rows["error"].null_count
    if "generated_dt" in names:
        new, without = count(pc.equal(rows["generated_dt"], dt)), rows["generated_dt"].null_count
        copied = count(pc.and_kleene(pc.equal(rows["generated_dt"], dt), rows["copied"])) if (
            "copied" in names) else 0
        counted |= {"written": new - copied, "copied": copied, "without_text": without,
                    "carried": len(rows) - new - without}
        counted["guarded"] = count(pc.and_kleene(pc.equal(rows["generated_dt"], dt),
                                                 pc.greater(rows["guarded_tokens"], 0)))
    if "rank" in names:
        users = pc.count_distinct(rows["user_id"]).as_py()
        popular = count(pc.and_kleene(pc.equal(rows["rank"], 1), pc.equal(rows["source"], "popularity")))
        counted |= {"users": users, "popular": popular, "searched": users - popular - counted["errors"]}
    return counted


def _entry(path: Path) -> dict:
    """A file as the manifest of its snapshot names it."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {"rows": pq.read_metadata(path).num_rows, "bytes": path.stat().st_size, "sha256": sha256}


def _link(path, target) -> None:
    """A hard link, or a copy where the filesystem has none."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copy2(path, target)
