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
from collections.abc import Callable
from pathlib import Path

from dare_job.errors import InfrastructureError
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_UNUSED_S = 3 * 86400.0  # pool copies not used for this long belong to finished runs
# environment variables with the folder of a Spark application on a host: standalone workers, YARN
_APPLICATION = (("SPARK_EXECUTOR_DIRS", os.pathsep), ("LOCAL_DIRS", ","))


def local_copy(folder: AnyPath, version: str, kept: bool = False) -> Path:
    """The folder itself if it is on a disk, else a copy on this host, downloaded once per version.

    Parameters
    ----------
    kept
        Keep the copy in the user's cache folder for all jobs (models) instead of temporary files.

    Raises
    ------
    InfrastructureError
        The download failed; the message names the host.
    FileNotFoundError
        The URL does not exist.
    """
    if paths.is_local(folder):
        return folder
    root = user_cache("copies") if kept else _temporary()
    copy = root / hashlib.sha256(f"{folder}\n{version}".encode()).hexdigest()[:32]
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise PermissionError(f"{root} belongs to another user")
        make_once(copy, lambda partial: _download(folder, partial))
        os.utime(copy)
        if not kept:
            _remove_unused(root)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InfrastructureError(f"{folder} cannot be copied to {socket.gethostname()}:{root}: "
                                  f"{error}") from error
    return copy


def make_once(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make a folder unless it exists: the first process calls ``fill`` on an empty one, the others wait."""
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return
        partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
        partial.mkdir()
        try:
            fill(partial)
            os.rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _download(folder: AnyPath, partial: Path) -> None:
    sizes = {name: entry["size"] for name, entry in paths.listing(folder).items()}
    for name in sizes:
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
    paths.map_paths(lambda file: _get(folder, partial, file), [folder / name for name in sizes])
    for name, size in sizes.items():
        if (partial / name).stat().st_size != size:
            raise OSError(f"{folder / name} was truncated or changed during the download")


def _get(folder: AnyPath, into: Path, file: AnyPath) -> None:
    file.fs.get_file(file.path, str(into / file.path.removeprefix(folder.path).lstrip("/")))


def _remove_unused(root: Path) -> None:
    """Delete copies that were not used recently. Processes that have mapped a copy can still read it."""
    for copy in root.iterdir():
        if copy.is_dir() and time.time() - copy.stat().st_mtime > _UNUSED_S:
            shutil.rmtree(copy, ignore_errors=True)


def user_cache(name: str) -> Path:
    """A file or folder of this user's cache, below $XDG_CACHE_HOME/dare-job or ~/.cache/dare-job."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "dare-job" / name


def _temporary() -> Path:
    return application_folder() or Path(tempfile.gettempdir()) / f"dare-job-{os.getuid()}"


def application_folder() -> Path | None:
    """Folder of the Spark application on this host, shared by its executors; None on a local master."""
    for name, separator in _APPLICATION:
        if os.environ.get(name):
            return Path(os.environ[name].split(separator)[0]) / "dare-job"
    return None
