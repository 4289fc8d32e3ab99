"""Reads any supported input format into the contract tables, once per date and input.

Each format has its own module.
"""

import errno
import lzma
import shutil
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import PurePosixPath

from dare_job.config.settings import InputSettings
from dare_job.data.readers import amazon, checks, movielens, parquet
from dare_job.data.readers.casts import Source
from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.spark import executors
from dare_job.spark.session import failure_cause, refused_resource
from dare_job.storage import errors, paths
from dare_job.storage.paths import AnyPath
from dare_job.workspace import committing, digest, is_done

_ARCHIVE = ".archive"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}  # errors of the disk, not of the archive


@dataclass(frozen=True)
class InputCounts:
    """Numbers of rows that were read. ``reasons``: rejects by the most common reasons of each table."""

    format: str
    interactions: int
    users: int
    items: int
    broken: int  # rejects that count against input.max_reject_share
    duplicates: int  # rejects that repeat an id
    reasons: dict[str, int]


@progress.doing("reading the input")
def prepare_input(job: Job) -> AnyPath:
    """Folder with ``interactions users items rejects.parquet``. Reads the input again only if it changed.

    Raises DataError like ``read_input``.
    """
    settings = job.config.input
    folder = job.space.stage("input")
    files = input_identity(settings)
    source = str(paths.path(settings.path).absolute())  # the same for every spelling of a path
    fingerprint = digest([source, settings.format, settings.max_reject_share, files])
    if not is_done(folder, fingerprint):
        record: dict = {}
        with committing(folder, fingerprint, record) as staging:
            record.update(asdict(read_input(settings, staging, job.spark)))
    return job.space.stage("input")


def read_input(settings: InputSettings, into: AnyPath, spark) -> InputCounts:
    """Write ``interactions users items rejects`` (Parquet folders, see ``schemas``) to ``into``.

    Raises
    ------
    DataError
        The path does not exist, its format is unknown, a file or column is damaged or missing, or more than
        ``max_reject_share`` of the rows are unusable.
    InfrastructureError
        Executors were lost.
    PySparkException, Py4JError
        Java has ended, or a disk is full.
    """
    if not settings.path:
        raise DataError("input.path is not set: set it to a folder or file with interactions (--input PATH)")
    path = paths.path(settings.path, "input.path")
    if not path.exists():
        raise DataError(f"input.path = {path}: no such file or folder")
    into.mkdir(parents=True, exist_ok=True)
    folder = unpack(path, into / _ARCHIVE)
    form = settings.format if settings.format != "auto" else detect_format(folder)
    reader = {"parquet": parquet, "movielens": movielens, "amazon": amazon}[form]
    inner = single_subfolder(folder)
    try:
        return _read_and_check(partial(reader.read, inner, spark), inner, form, into,
                               settings.max_reject_share)
    finally:
        paths.remove_tree(into / _ARCHIVE)


def read_amazon(reviews: AnyPath, metadata: AnyPath, into: AnyPath, max_reject_share: float,
                spark) -> InputCounts:
    """``read_input`` for a file of Amazon reviews (JSON lines, or a csv of ratings) and one of metadata."""
    return _read_and_check(partial(amazon.read_pair, reviews, metadata, spark), reviews, "amazon", into,
                    max_reject_share)


def _read_and_check(read: Callable[[], Source], path: AnyPath, form: str, into: AnyPath,
             max_reject_share: float) -> InputCounts:
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    try:
        with executors.one_line_errors():
            counts = checks.write_checked(read(), into, max_reject_share)
    except (PySparkException, Py4JError) as error:
        if isinstance(error, Py4JNetworkError):
            raise  # Java has ended
        damage = parquet.find_damage(path)
        if damage is None and refused_resource(error):
            raise  # for example a full disk; the input is fine
        raise damage or DataError(f"{path} could not be read: {failure_cause(error)}") from error
    tables = counts.values()
    return InputCounts(
        form, *[counts[name].written for name in ("interactions", "users", "items")],
        sum(table.broken for table in tables), sum(table.duplicates for table in tables),
        {reason: rows for table in tables for reason, rows in table.reasons.items()})


def detect_format(path: AnyPath) -> str:
    """Name of the format of a folder or file. Raises DataError if it is not supported."""
    form = _format_of(single_subfolder(path))
    if form is None:
        raise DataError(f"input.path = {path}: none of the supported formats (Parquet with "
                        "interactions.parquet, MovieLens, Amazon review JSON lines); set input.format")
    return form


def _format_of(inner: AnyPath) -> str | None:
    if inner.is_file():
        fits = {"parquet": inner.suffix == ".parquet", "amazon": bool(amazon.json_files(inner))}
    else:
        fits = {"parquet": parquet.table_path(inner, "interactions") is not None,
                "movielens": any((inner / mark).exists() for mark in movielens.MARKS),
                "amazon": bool(amazon.json_files(inner))}
    return next((name for name, fit in fits.items() if fit), None)


def input_identity(settings: InputSettings) -> list[list]:
    """[name, bytes, modification time in ns] of each input file, for a fingerprint."""
    path = paths.path(settings.path or "", "input.path")
    errors.check_access(path, "input.path")
    folder = single_subfolder(path)
    files = [folder] if folder.is_file() else [path for path in folder.glob("*") if path.is_file()]
    for name in ("interactions", "users", "items") if folder.is_dir() else ():
        table = parquet.table_path(folder, name)
        files += parquet.parquet_files(table) if table and table.is_dir() else []
    return sorted([str(file.relative_to(folder)), *version]
                  for file, (_, *version) in zip(files, paths.file_versions(files), strict=True))


def single_subfolder(path: AnyPath) -> AnyPath:
    """Descend while a folder contains nothing but a single folder."""
    if path.is_dir():
        entries = [entry for entry in path.iterdir() if not entry.name.startswith((".", "__"))]
        if len(entries) == 1 and entries[0].is_dir() and parquet.table_path(path, "interactions") is None:
            return single_subfolder(entries[0])
    return path


def unpack(path: AnyPath, into: AnyPath) -> AnyPath:
    """Unpack a zip archive to ``into`` and return the input's folder in it; other paths are unchanged.

    Raises DataError if the archive cannot be read or a member's name leads out of it.
    """
    if not _is_zip(path):
        if path.suffix == ".zip":
            raise DataError(f"{path} is not a readable zip archive")
        return path
    into.mkdir()
    try:
        with paths.arrow_source(path) as source, zipfile.ZipFile(source) as archive:
            for member in archive.infolist():
                target = into / _member_path(path, member.filename)
                if not member.is_dir():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(member) as packed, target.open("wb") as file:
                        shutil.copyfileobj(packed, file)
    except RuntimeError as error:  # encrypted, or an unsupported compression method
        raise DataError(f"{path} cannot be unpacked: {error}") from error
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno in _DISK:
            raise
        raise DataError(f"{path} is damaged: {error}") from error
    return _data_folder(into)


def _is_zip(path: AnyPath) -> bool:
    if not path.is_file():
        return False
    with paths.arrow_source(path) as source:
        return zipfile.is_zipfile(source)


def _member_path(archive: AnyPath, name: str) -> PurePosixPath:
    """A member's relative path. Raises DataError if it leads out of the archive."""
    member = PurePosixPath(name.replace("\\", "/").lstrip("/"))
    if ".." in member.parts:
        raise DataError(f"{archive}: its member {name!r} leads out of the archive")
    return member


def _data_folder(unpacked: AnyPath) -> AnyPath:
    """The topmost folder with a supported format. An archive may contain other files beside its data."""
    folders = sorted((path for path in unpacked.rglob("*") if path.is_dir() and "__MACOSX" not in path.parts),
                     key=lambda path: (len(path.parts), path))
    return next((path for path in (unpacked, *folders) if _format_of(path)), unpacked)
