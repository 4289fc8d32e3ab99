"""Unpacks zip archives."""

import errno
import lzma
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import PurePosixPath

from dare_job.errors import DataError
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}  # errors of the disk, not of the archive
Detected = Callable[[AnyPath], str | None]


def unpack(path: AnyPath, into: AnyPath, detected: Detected) -> AnyPath:
    """Unpack a zip archive to ``into`` and return the input's folder in it; other paths are unchanged.

    Raises
    ------
    DataError
        The archive cannot be read, or a member's name leads out of it.
    """
    if not _is_zip(path):
        if path.suffix == ".zip" and path.is_file():
            raise DataError(f"{path} is not a readable zip archive")
        return path
    into.mkdir(parents=True)
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
    return _data_folder(into, detected)


def _is_zip(path: AnyPath) -> bool:
    if not path.is_file():
        return False
    with paths.arrow_source(path) as source:
        return zipfile.is_zipfile(source)


def _member_path(archive: AnyPath, name: str) -> PurePosixPath:
    """A member's relative path; it must not lead out of the archive."""
    member = PurePosixPath(name.replace("\\", "/").lstrip("/"))
    if ".." in member.parts:
        raise DataError(f"{archive}: its member {name!r} leads out of the archive")
    return member


def _data_folder(unpacked: AnyPath, detected: Detected) -> AnyPath:
    """The topmost folder with a supported format. An archive may contain other files beside its data."""
    folders = sorted((path for path in unpacked.rglob("*") if path.is_dir() and "__MACOSX" not in path.parts),
                     key=lambda path: (len(path.parts), path))
    return next((path for path in (unpacked, *folders) if detected(path)), unpacked)
