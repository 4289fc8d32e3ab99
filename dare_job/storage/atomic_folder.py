"""Replaces a folder atomically: after a kill at any moment, the old or the new folder is complete.

    .<name>.<token>.staging   folder being written, or a replaced folder being deleted; safe to remove
    .<name>.retired           the old folder between two renames, if the filesystem cannot swap folders

Local Linux filesystems swap two folders in one step (renameat2 with RENAME_EXCHANGE). Others (NFS, other
systems) need two renames. A kill between them hides the folder until the next command calls ``recover``. Of a
link, the folder that it leads to is replaced, and the link stays.
Object stores cannot rename folders; ``versions`` handles URLs.
"""

import ctypes
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dare_job.errors import InfrastructureError
from dare_job.storage import errors, lock, versions
from dare_job.storage import paths as storage_paths
from dare_job.storage.paths import AnyPath

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
GRACE_S = 1.0  # time for readers that opened a folder before its replacement to finish listing it


def stage_folder(folder: AnyPath, flat: bool = False) -> AnyPath:
    """Create an empty staging folder that ``replace`` or ``publish`` later moves to ``folder``.

    Its name is unique, so tasks of a killed run that are still writing cannot write into it.

    Parameters
    ----------
    flat
        True for a published date. At a URL this returns the folder itself; its files get new names.
    """
    if not storage_paths.is_local(folder):
        lock.require_held()  # clean-up cannot tell another command's staging from leftovers
        return folder if flat else versions.new_version(folder)
    clean_up(folder)
    staging = _staging(folder.resolve())
    staging.mkdir(parents=True)
    return staging


@contextmanager
def remove_on_error(staging: AnyPath) -> Iterator[None]:
    """Remove a staging folder if the block fails, so that it does not fill the disk."""
    try:
        yield
    except BaseException:
        if storage_paths.is_local(staging):
            shutil.rmtree(staging, ignore_errors=True)
        else:
            with errors.suppress_store_errors(OSError, InfrastructureError):  # the store may have failed
                lock.require_held()
                versions.discard(staging)
        raise


def replace(new: AnyPath, old: AnyPath) -> None:
    """Move a staging folder to its final place and delete the folder that was there.

    Raises
    ------
    InfrastructureError
        At a URL, if the lock was lost.
    """
    if not storage_paths.is_local(old):
        lock.require_held()
        return versions.clean_up_snapshot(old) if new == old else versions.activate(new, old)
    if _move_into_place(new, old):
        shutil.rmtree(new, ignore_errors=True)


def publish(folders: dict[AnyPath, AnyPath]) -> None:
    """``replace`` several folders in order, while readers may be listing the old ones.

    Parameters
    ----------
    folders
        Final folder by staging folder. On a disk the old folders are deleted after ``GRACE_S``.

    Raises
    ------
    InfrastructureError
        At a URL, if the lock was lost.
    """
    replaced = []
    for new, old in folders.items():
        if not storage_paths.is_local(old):
            replace(new, old)
        elif _move_into_place(new, old):
            replaced.append(new)
    if replaced:
        time.sleep(GRACE_S)
    for folder in replaced:
        shutil.rmtree(folder, ignore_errors=True)


def current(folder: AnyPath) -> AnyPath:
    """Folder that holds the content: the folder itself, or at a URL its current version."""
    return folder if storage_paths.is_local(folder) else versions.current(folder)


def final_folder(staging: AnyPath, folder: AnyPath) -> AnyPath:
    """Where the content of a staging folder will be after ``replace``."""
    return folder if storage_paths.is_local(folder) else staging


def clean_up(folder: AnyPath) -> None:
    """Remove what a killed writer left in and beside a folder, and restore a folder that it had retired."""
    if not storage_paths.is_local(folder):
        return versions.clean_up_snapshot(folder)
    folder = folder.resolve()
    retired = _retired(folder)
    if retired.exists():
        os.rename(retired, _staging(folder) if folder.exists() else folder)
    for staging in folder.parent.glob(f".{folder.name}.*staging"):
        shutil.rmtree(staging, ignore_errors=True)
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)


def clean_up_below(root: AnyPath) -> None:
    """``clean_up`` every folder in ``root``, including folders that were only staged."""
    if not storage_paths.is_local(root):
        for name in {name.split("/")[0] for name in storage_paths.listing(root) if "/" in name}:
            versions.clean_up(root / name)
        return
    for folder in _target_folders(path for path in root.glob("*") if path.is_dir()):
        clean_up(folder)


def recover(out: AnyPath) -> None:
    """Restore published dates that a kill between two renames hid, except dates that are being written."""
    if not storage_paths.is_local(out):
        return
    tables = ("knowledge/entity=*", "features/entity=*", "candidates")
    for folder in _target_folders(path for name in tables for path in out.glob(f"{name}/.dt=*.retired")):
        if not storage_paths.folder_date(folder.name):
            continue
        with suppress(InfrastructureError, OSError), lock.held(out / "_work" / folder.name):
            clean_up(folder)


def _target_folders(paths: Iterable[Path]) -> list[Path]:
    """Map hidden staging and retired folders to the folders that they belong to."""
    return sorted({path.with_name(path.name.lstrip(".").split(".")[0]) for path in paths})


def _move_into_place(new: Path, old: Path) -> bool:
    """Move ``new`` to ``old``. True if ``old`` existed; it is then called ``new``."""
    old = old.resolve()
    if not old.exists():
        os.rename(new, old)
        return False
    if not _exchange(new, old):
        retired = _retired(old)
        os.rename(old, retired)
        os.rename(new, old)
        os.rename(retired, new)  # delete under this name, so that a retired folder is always complete
    return True


def _staging(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.staging")


def _retired(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.retired")


def _exchange(first: Path, other: Path) -> bool:
    """Swap two folders in one step. False if the system does not support it."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):  # another system, or an old C library
        return False
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
