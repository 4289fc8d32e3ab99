"""Ships folders such as models and pools from the driver to executors that cannot see its disk.

``ship_folder`` packs a folder into an archive, which Spark copies to each executor before its next task.
``unpack_archive`` unpacks it once per host into files that can be memory-mapped. Archives are named by their
content. Spark removes archives and unpacked folders when the application ends.
"""

import hashlib
import logging
import os
import socket
import tarfile
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dare_job.errors import InfrastructureError
from dare_job.spark.environment import is_local
from dare_job.storage.local_copy import application_folder, make_once
from dare_job.storage.paths import is_local as is_on_disk

_LOG = logging.getLogger("dare_job")
_LARGE = 256 << 20  # log a message for larger folders, as archiving takes seconds
_shipped: dict[tuple, "Archive"] = {}


@dataclass(frozen=True)
class Archive:
    """A shipped folder: its path on the driver, and name and SHA-256 of the archive."""

    folder: str
    name: str
    sha256: str


def should_ship(job, what: str) -> bool:
    """Whether ``what`` ("model" or "pools") is shipped to this job's executors (spark.ship)."""
    ship = job.config.spark.ship
    if what == "pools" and not is_on_disk(job.space.out):
        return False  # each host downloads them: dare_job/storage/local_copy.py
    if ship == "auto":
        return not is_local(job.spark.sparkContext.master)
    return ship in ("always", what)


def ship_model(job, folder: Path, fingerprint: str,
               files: Callable[[Path], Iterable[Path]]) -> tuple[Archive | None, str]:
    """Make a model available to executors.

    Returns
    -------
    Archive or None
        The shipped folder; None if executors read their own copy.
    str
        Fingerprint that an executor must check its copy against; empty if it need not.
    """
    if should_ship(job, "model"):
        return ship_folder(job.spark, folder, fingerprint, files(folder)), ""
    return None, "" if is_local(job.spark.sparkContext.master) else fingerprint


def ship_folder(spark, folder: Path, version: str, files: Iterable[Path] | None = None) -> Archive:
    """Pack a folder, or some of its ``files``, for the executors. Packs each ``version`` only once.

    Raises
    ------
    InfrastructureError
        The disk of the driver's temporary files is full, or a file cannot be read.
    """
    from pyspark import SparkFiles

    key = spark.sparkContext.applicationId, str(folder), version
    if key not in _shipped:
        paths = sorted(path for path in (folder.rglob("*") if files is None else files) if path.is_file())
        size = sum(path.stat().st_size for path in paths)
        if size > _LARGE:
            _LOG.info("archiving %s for the executors: %.1f GB in %d files", folder, size / 1e9, len(paths))
        partial = Path(SparkFiles.getRootDirectory()) / f".{uuid.uuid4().hex}.tar"
        try:
            _pack(partial, folder, paths)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise InfrastructureError(f"{folder} cannot be packed for the executors in {partial.parent}: "
                                      f"{error} (set spark.local.dir to another disk, or spark.ship=never if "
                                      "every host has the folder)") from error
        sha256 = _digest(partial)
        archive = Archive(str(folder), f"dare-job-{sha256}.tar", sha256)
        served = partial.with_name(archive.name)  # in Spark's own folder, so that Spark makes no second copy
        os.replace(partial, served)
        spark.sparkContext.addFile(str(served))
        _shipped[key] = archive
    return _shipped[key]


def unpack_archive(archive: Archive) -> str:
    """Path of a shipped folder on this host. Call it in a Spark task; the first call unpacks the archive.

    Raises
    ------
    InfrastructureError
        The archive is damaged, or the disk is full. The message names the host.
    """
    from pyspark import SparkFiles

    root = application_folder() or Path(SparkFiles.getRootDirectory()) / "dare-job"
    folder = root / archive.sha256[:32]
    try:
        root.mkdir(parents=True, exist_ok=True)
        make_once(folder, lambda partial: _unpack(Path(SparkFiles.get(archive.name)), archive, partial))
    except (OSError, tarfile.TarError) as error:
        raise InfrastructureError(f"{archive.folder} cannot be unpacked on {socket.gethostname()} in {root}: "
                                  f"{error}") from error
    return str(folder)


def _pack(target: Path, folder: Path, paths: list[Path]) -> None:
    """Pack reproducibly: equal content gives an equal archive. Follows links, as in a hub's cache."""
    def normalize(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o644
        return entry

    with tarfile.open(target, "w", dereference=True) as archive:
        for path in paths:
            archive.add(path, path.relative_to(folder).as_posix(), filter=normalize)


def _unpack(file: Path, archive: Archive, into: Path) -> None:
    if _digest(file) != archive.sha256:
        raise OSError(f"{file} is damaged (SHA-256 differs from the driver's)")
    with tarfile.open(file) as entries:
        entries.extractall(into, filter="data")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
