"""Saved pools on disk: a folder of ``.npy`` arrays and ``manifest.json``, written atomically.

The manifest holds the format version, the size and SHA-256 of each array file, and the metadata of the
builder. Opening a pool always compares sizes, and compares digests on request (over 1 GB/s with hardware
SHA).
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from pools import PoolError

FORMAT = "dare-job pool"
VERSION = 2
NAME = "manifest.json"
_REBUILD = "remove the folder and run the pools stage again"


def write(folder: str | Path, arrays: dict[str, np.ndarray], entries: dict) -> dict:
    """Save arrays as NAME.npy with a manifest, atomically.

    All files are written to a temporary folder next to ``folder``, which is then renamed: a reader sees the
    old pool or the new one.

    Parameters
    ----------
    folder
        Path of the pool; an existing pool is replaced.
    arrays : array of each file, by name
    entries
        Metadata for the manifest, JSON values.

    Returns
    -------
    dict
        The manifest.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, array in arrays.items():
            with open(temporary / f"{name}.npy", "wb") as file:
                np.save(file, array, allow_pickle=False)
                _sync(file)
        files = {path.name: {"bytes": path.stat().st_size, "sha256": digest(path)}
                 for path in sorted(temporary.iterdir())}
        manifest = {"format": FORMAT, "version": VERSION, **entries, "files": files}
        manifest["manifest_sha256"] = _manifest_digest(manifest)
        with open(temporary / NAME, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1, sort_keys=True)
            _sync(file)
        os.chmod(temporary, 0o755)
        _replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return manifest


def read(folder: str | Path, *, verify: bool) -> dict:
    """Read the manifest and check the size of every file and, with ``verify``, its SHA-256.

    Raises
    ------
    PoolError
        The folder holds no complete pool, a file is damaged or truncated, or the format version differs.
    """
    path = Path(folder) / NAME
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PoolError(f"{path} does not exist: the pool is incomplete; run the pools stage") from None
    except (OSError, ValueError) as error:
        raise PoolError(f"{path} cannot be read ({error}): {_REBUILD}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise PoolError(f"{path} is not the manifest of a {FORMAT}: pass the folder of a pool")
    if manifest.get("version") != VERSION:
        raise PoolError(f"{path} has format version {manifest.get('version')}, expected {VERSION}: "
                        f"{_REBUILD}")
    if manifest.get("manifest_sha256") != _manifest_digest(manifest):
        raise PoolError(f"{path} is damaged (checksum mismatch): {_REBUILD}")
    for name, expected in manifest["files"].items():
        _check_file(Path(folder) / name, expected, verify)
    return manifest


def array(folder: str | Path, name: str) -> np.ndarray:
    """Memory-map an array file read-only; processes share the pages.

    Raises
    ------
    PoolError
        The file is missing or damaged.
    """
    path = Path(folder) / f"{name}.npy"
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise PoolError(f"{path} cannot be mapped ({error}): {_REBUILD}") from None


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(path: Path, expected: dict, verify: bool) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        raise PoolError(f"{path} is missing: {_REBUILD}") from None
    if size != expected["bytes"]:
        raise PoolError(f"{path} has {size} bytes instead of {expected['bytes']}: {_REBUILD}")
    if verify and digest(path) != expected["sha256"]:
        raise PoolError(f"{path} is damaged (SHA-256 mismatch): {_REBUILD}")


def _manifest_digest(manifest: dict) -> str:
    signed = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()


def _sync(file) -> None:
    file.flush()
    os.fsync(file.fileno())


def _replace(temporary: Path, folder: Path) -> None:
    """Rename ``temporary`` to ``folder``. POSIX replaces only empty folders, so an old pool is moved first.
    """
    if not folder.exists():
        os.rename(temporary, folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    os.rename(folder, old / "pool")
    os.rename(temporary, folder)
    shutil.rmtree(old, ignore_errors=True)
