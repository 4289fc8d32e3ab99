"""Puts a finished folder in the place of another: killed at any moment, one of the two is left whole.

    .<name>.<token>.staging   being written, or replaced and being deleted: nobody needs it again
    .<name>.retired           the old folder while it steps aside, where two folders cannot change places

On Linux the two change places in one step (renameat2 with RENAME_EXCHANGE), on any usual local filesystem.
Elsewhere (NFS, other systems) two renames are needed. A kill between them hides the folder until the next
command that opens the output: ``recover``. At a URL no folder can be renamed: ``versions``.
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
GRACE_S = 1.0  # who opened a folder before it was replaced has this long to list it, or sees it emptied


def stage_folder(folder: AnyPath, flat: bool = False) -> AnyPath:
    """An empty folder, to be written and to take the place of ``folder``.

    Its name is new each time: what tasks of a killed run still write does not end up in it.
    flat  a published date: at a URL the folder itself, for files with new names
    """
    if not storage_paths.is_local(folder):
        lock.require_held()  # what another command stages now looks like left by a killed one
        return folder if flat else versions.new_version(folder)
    clean_up(folder)
    staging = _staging(folder)
    staging.mkdir(parents=True)
    return staging


@contextmanager
def remove_on_error(staging: AnyPath) -> Iterator[None]:
    """Remove a folder from ``staged`` where the block fails: on a full disk it would keep it full."""
    try:
        yield
    except BaseException:
        if storage_paths.is_local(staging):
            shutil.rmtree(staging, ignore_errors=True)
        else:
            with errors.suppress_store_errors(OSError, InfrastructureError):  # the store may be what failed
                lock.require_held()
                versions.discard(staging)
        raise


def replace(new: AnyPath, old: AnyPath) -> None:
    """Put a folder from ``staged`` in its place, where an older one may be, which is deleted.

    Raises InfrastructureError where the lock was lost, at a URL.
    """
    if not storage_paths.is_local(old):
        lock.require_held()
        return versions.clean_up_snapshot(old) if new == old else versions.activate(new, old)
    if _move_into_place(new, old):
        shutil.rmtree(new, ignore_errors=True)


def publish(folders: dict[AnyPath, AnyPath]) -> None:
    """``replace`` in turn, for folders that readers may be listing now; keys are from ``staged``.

    On a disk the older ones are deleted ``GRACE_S`` later.
    Raises InfrastructureError where the lock was lost, at a URL.
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
    """Where a folder's content is: the folder itself, or at a URL its version in force."""
    return folder if storage_paths.is_local(folder) else versions.current(folder)


def base_folder(folder: AnyPath) -> AnyPath:
    """The other way: the folder whose content is in one from ``current``."""
    return folder if storage_paths.is_local(folder) else versions.base_folder(folder)


def final_folder(staging: AnyPath, folder: AnyPath) -> AnyPath:
    """Where the content of a folder from ``staged`` will be once it has taken the place of ``folder``."""
    return folder if storage_paths.is_local(folder) else staging


def clean_up(folder: AnyPath) -> None:
    """Remove what a killed writer of a folder left in and beside it, and put an old one back that it hid."""
    if not storage_paths.is_local(folder):
        return versions.clean_up_snapshot(folder)
    retired = _retired(folder)
    if retired.exists():
        os.rename(retired, _staging(folder) if folder.exists() else folder)
    for staging in folder.parent.glob(f".{folder.name}.*staging"):
        shutil.rmtree(staging, ignore_errors=True)
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)


def clean_up_below(root: AnyPath) -> None:
    """``settle`` every folder that is, or was about to be, in ``root``."""
    if not storage_paths.is_local(root):
        for name in {name.split("/")[0] for name in storage_paths.listing(root) if "/" in name}:
            versions.clean_up(root / name)
        return
    for folder in _target_folders(path for path in root.glob("*") if path.is_dir()):
        clean_up(folder)


def recover(out: AnyPath) -> None:
    """Show the published dates again that a kill between two renames hid, save those being written now."""
    if not storage_paths.is_local(out):
        return
    tables = ("knowledge/entity=*", "features/entity=*", "candidates")
    for folder in _target_folders(path for name in tables for path in out.glob(f"{name}/.dt=*.retired")):
        if not storage_paths.folder_date(folder.name):
            continue
        with suppress(InfrastructureError, OSError), lock.held(out / "_work" / folder.name):
            clean_up(folder)


def _target_folders(paths: Iterable[Path]) -> list[Path]:
    """The folders themselves, and those that the hidden ones stand beside."""
    return sorted({path.with_name(path.name.lstrip(".").split(".")[0]) for path in paths})


def _move_into_place(new: Path, old: Path) -> bool:
    """Put a folder in its place; True where there was an older one, which has the name ``new`` now."""
    if not old.exists():
        os.rename(new, old)
        return False
    if not _exchange(new, old):
        retired = _retired(old)
        os.rename(old, retired)
        os.rename(new, old)
        os.rename(retired, new)  # deleted under this name: a folder called retired is always whole
    return True


def _staging(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.staging")


def _retired(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.retired")


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; False where nothing was done."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):  # another system, or an old C library
        return False
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
