"""Local copies of folders at URLs, for files that must be memory-mapped: pools and models.

The first process of a host that needs a copy downloads it into a hidden folder and renames it; the others
wait. The name is a hash of URL and version, so a changed folder is downloaded again.
"""

import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
import time
import uuid
from pathlib import Path

from dare_job.errors import InfrastructureError
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_UNUSED_S = 3 * 86400.0  # pool copies not used for this long belong to finished runs
# environment variables with the application's own folder on a host: Spark standalone, YARN
_SHARED = (("SPARK_EXECUTOR_DIRS", os.pathsep), ("LOCAL_DIRS", ","))


def local_copy(folder: AnyPath, version: str, kept: bool = False) -> Path:
    """The folder itself if it is on a disk, else a copy on this host, downloaded once per version.

    Parameters
    ----------
    kept : keep the copy in the user's cache folder for all jobs (models) instead of temporary files

    Raises
    ------
    InfrastructureError : the download failed; the message names the host
    FileNotFoundError : the URL does not exist
    """
    if paths.is_local(folder):
        return folder
    root = _cache() if kept else _temporary()
    copy = root / hashlib.sha256(f"{folder}\n{version}".encode()).hexdigest()[:32]
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise PermissionError(f"{root} belongs to another user")
        with open(root / f"{copy.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not copy.is_dir():
                _fetch(folder, copy)
            os.utime(copy)
        if not kept:
            _remove_unused(root)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InfrastructureError(f"{folder} cannot be copied to {socket.gethostname()}:{root}: "
                                  f"{error}") from error
    return copy


def _fetch(folder: AnyPath, copy: Path) -> None:
    partial = copy.with_name(f".{copy.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir()
    try:
        wanted = paths.listing(folder)
        for name in wanted:
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
        paths.map_paths(lambda path: _get(folder, partial, path), [folder / name for name in wanted])
        for name, entry in wanted.items():
            if (partial / name).stat().st_size != entry["size"]:
                raise OSError(f"{folder / name} was truncated or changed during the download")
        os.rename(partial, copy)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _get(folder: AnyPath, into: Path, file: AnyPath) -> None:
    file.fs.get_file(file.path, str(into / file.path.removeprefix(folder.path).lstrip("/")))


def _remove_unused(root: Path) -> None:
    """Delete copies that were not used recently. Processes that have mapped a copy can still read it."""
    for copy in root.iterdir():
        if copy.is_dir() and time.time() - copy.stat().st_mtime > _UNUSED_S:
            shutil.rmtree(copy, ignore_errors=True)


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "dare-job" / "copies"


def _temporary() -> Path:
    for name, separator in _SHARED:
        if os.environ.get(name):
            return Path(os.environ[name].split(separator)[0]) / "dare-job"
    return Path(tempfile.gettempdir()) / f"dare-job-{os.getuid()}"
