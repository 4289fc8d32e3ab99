"""Paths on disks (pathlib) and at URLs (UPath of universal_pathlib, through fsspec).

``path`` makes a path of either kind; both are used like pathlib paths. This module also has the operations
that differ. At a URL a file is complete or absent, writes can be conditional, and a folder is only a prefix
of names, which cannot be renamed.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from dare_job.errors import ConfigError, install_hint

if TYPE_CHECKING:
    from upath import UPath

    AnyPath = Path | UPath
else:
    AnyPath = Path

# scheme, which is also the extra of pyproject.toml: package, and options; listings must be current
_STORES: dict[str, tuple[str, dict[str, Any]]] = {
    "s3": ("s3fs", {"use_listings_cache": False}), "hdfs": ("hdfs_native", {})}
_THREADS = 16  # concurrent requests; each takes tens of milliseconds
T, R = TypeVar("T"), TypeVar("R")


def path(text: str | AnyPath, setting: str = "path") -> AnyPath:
    """A path from the text of a setting: a local path, also as ~/folder, file://, s3:// or hdfs://.

    Raises
    ------
    ConfigError
        Unknown scheme, missing package, credentials in the URL, or no cluster in HADOOP_CONF_DIR.
    """
    if not isinstance(text, str) or "://" not in text:
        return Path(os.path.expanduser(text)) if isinstance(text, str) else text
    url = urlsplit(text)
    if url.scheme == "file":
        if url.netloc not in ("", "localhost"):
            raise ConfigError(f"{setting}: {text} names the host {url.netloc}; write file:///folder")
        return Path(unquote(url.path))
    scheme = {"s3a": "s3", "s3n": "s3"}.get(url.scheme, url.scheme)  # as Hadoop calls it
    if scheme not in _STORES:
        raise ConfigError(f"{setting}: {url.scheme}:// is not supported; valid: a path, file://, s3://, "
                          "hdfs://")
    if url.password is not None or (scheme == "s3" and "@" in url.netloc) or url.query:
        raise ConfigError(f"{setting}: remove user, password and query from the URL, because URLs appear in "
                          "logs and manifests; pass credentials in the environment (AWS_ACCESS_KEY_ID, "
                          "AWS_PROFILE) or give the host a role")
    if any(mark in text for mark in "*[]?"):
        raise ConfigError(f"{setting} = {text}: wildcards (* ? [ ]) are not supported in URLs")
    if scheme == "hdfs" and url.netloc:
        raise ConfigError(f"{setting} = {text}: write hdfs:///folder; HADOOP_CONF_DIR selects the cluster")
    if scheme == "s3" and not url.netloc:
        raise ConfigError(f"{setting} = {text}: write s3://BUCKET/folder")
    return _remote(scheme, text.partition("://")[2].rstrip("/"), setting)


def _remote(scheme: str, rest: str, setting: str) -> AnyPath:
    from importlib import import_module

    package, options = _STORES[scheme]
    try:
        import_module(package)
        from fsspec import register_implementation
        from upath import UPath
    except ImportError as error:
        raise ConfigError(f"{setting}: {scheme}:// needs the package {error.name}: {install_hint(scheme)}; "
                          "see docs/how-to/object-stores.md") from None
    if scheme == "hdfs":
        register_implementation("hdfs", "dare_job.storage.hdfs.HdfsFileSystem", clobber=True)
    url = UPath(f"{scheme}://{rest}", **options)
    try:
        url.fs  # noqa: B018  connect now, so that all derived paths share the connections
    except OSError as error:
        raise ConfigError(f"{setting} = {url}: {error}; HADOOP_CONF_DIR must name the folder of "
                          "core-site.xml and hdfs-site.xml, with the cluster as fs.defaultFS") from error
    return url


def is_local(path: AnyPath | str) -> bool:
    """Whether a path is on a disk, rather than the path of a URL; a string always counts as on a disk."""
    return not hasattr(path, "fs")


def arrow_location(path: AnyPath) -> tuple[Any, str]:
    """(filesystem, name) for pyarrow; the filesystem is None for a local path."""
    if is_local(path):
        return None, str(path)
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return PyFileSystem(FSSpecHandler(path.fs)), path.path


def parquet_dataset(folder: AnyPath, **options):
    """pyarrow dataset of the Parquet files of a folder."""
    import pyarrow.dataset as ds

    filesystem, name = arrow_location(folder)
    return ds.dataset(name, filesystem=filesystem, **options)


@contextmanager
def arrow_source(path: AnyPath) -> Iterator[Path | BinaryIO]:
    """Source for pyarrow readers: a local path itself, or an open file at a URL."""
    if is_local(path):
        yield path
    else:
        with path.open("rb") as file:
            yield file


@contextmanager
def arrow_sink(path: AnyPath) -> Iterator[Path | BinaryIO]:
    """Target for pyarrow writers. At a URL the file appears, complete, after the block succeeds."""
    if is_local(path):
        yield path
    else:
        with _uploading(path) as file:
            yield file


@contextmanager
def atomic_writer(path: AnyPath, partial: str) -> Iterator[BinaryIO]:
    """Write a file atomically: it replaces ``path`` after the block, or nothing changes if the block fails.

    Parameters
    ----------
    partial
        On a disk, name of the temporary file in the same folder.
    """
    if not is_local(path):
        with _uploading(path) as file:
            yield file
        return
    hidden = path.with_name(partial)
    with open(hidden, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, path)


@contextmanager
def _uploading(path: AnyPath) -> Iterator[BinaryIO]:
    """Upload through a temporary file: closing a stream early would publish a truncated object."""
    with tempfile.NamedTemporaryFile(prefix="dare-job-") as file:
        yield file
        file.flush()
        path.fs.put_file(file.name, path.path)


def upload(folder: Path, to: AnyPath) -> None:
    """Copy a local folder's files to a URL. manifest.json is copied last, as it names the others."""
    files = sorted((file for file in folder.rglob("*") if file.is_file()),
                   key=lambda file: (file.name == "manifest.json", file))
    for file in files:
        to.fs.put_file(str(file), (to / file.relative_to(folder).as_posix()).path)


def version_of(path: AnyPath) -> str:
    """Version of an object, which changes with its content.

    Raises
    ------
    FileNotFoundError
        The object does not exist.
    """
    return _version(path.fs.info(path.path))


def _version(entry: dict) -> str:
    return str(entry.get("ETag") or entry.get("mtime"))


def file_versions(files: Iterable[AnyPath]) -> list[list]:
    """[name, size in bytes, modification time in ns or version] of each file, for fingerprints."""
    files = list(files)
    if all(map(is_local, files)):
        stats = [file.stat() for file in files]
        return [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in zip(files, stats, strict=True)]
    if len(files) < 2 * _THREADS:
        entries = map_paths(lambda file: file.fs.info(file.path), files)
    else:
        listings = {parent: listing(parent) for parent in {file.parent for file in files}}
        entries = [listings[file.parent][file.name] for file in files]
    return [[file.name, entry["size"], _version(entry)] for file, entry in zip(files, entries, strict=True)]


def listing(folder: AnyPath) -> dict[str, dict]:
    """Objects below a URL's folder: metadata from the store (size, ETag) by relative name."""
    root = folder.path.rstrip("/") + "/"
    entries = folder.fs.find(folder.path, detail=True)
    return {name.removeprefix(root): entry
            for name, entry in sorted(entries.items()) if name.startswith(root)}


def visible_files(folder: AnyPath, suffix: str = "") -> list[AnyPath]:
    """Files below a folder in order, without hidden files and folders (``.`` or ``_``)."""
    if is_local(folder):
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob(f"*{suffix}") if path.is_file())
    else:
        names = list(listing(folder))
    return [folder / name for name in names
            if name.endswith(suffix) and not any(part.startswith((".", "_")) for part in name.split("/"))]


def folder_date(name: str) -> str | None:
    """The date in a folder name ``dt=YYYY-MM-DD``; None for other names such as ``dt=2026-01-02.bak``."""
    text = name.removeprefix("dt=")
    try:
        return text if name != text and date.fromisoformat(text).isoformat() == text else None
    except ValueError:
        return None


def dated_folders(*parents: AnyPath) -> list[AnyPath]:
    """Folders ``dt=YYYY-MM-DD`` in ``parents``, by date. Copies such as ``dt=D_old`` are ignored."""
    folders = [folder for parent in parents for folder in parent.glob("dt=*") if folder_date(folder.name)]
    return sorted(folders, key=lambda folder: folder.name)


def make_folder(folder: AnyPath) -> None:
    """Create a folder and its parents if missing. At a URL folders need not be created."""
    if is_local(folder):
        folder.mkdir(parents=True, exist_ok=True)


def remove_tree(folder: AnyPath) -> None:
    """Delete a folder with its contents. A missing folder is ignored."""
    import shutil

    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    if folder.protocol == "hdfs":
        folder.fs.rm(folder.path, recursive=True)
    else:
        remove_below(folder, listing(folder))


def remove_below(folder: AnyPath, names: Iterable[str]) -> None:
    """Delete files named as in ``listing``, with few requests, and the folders that become empty."""
    names = list(names)
    if names:
        folder.fs.rm([folder.fs._strip_protocol(str(folder / name)) for name in names])
        remove_empty(folder, names)


def remove_empty(folder: AnyPath, names: Iterable[str] = ()) -> None:
    """Remove a URL's folder and the subfolders that these files were in, if they are empty."""
    if folder.protocol != "hdfs":  # an S3 folder disappears with its last file
        return
    folders = {folder}
    for name in names:
        folders.update((folder / name).parents[:name.count("/")])
    for empty in sorted(folders, key=lambda path: -len(path.parts)):
        with suppress(OSError):
            empty.fs.rmdir(empty.path)


def map_paths(function: Callable[[T], R], paths: Iterable[T]) -> list[R]:
    """Apply ``function`` to each path and keep the order. Paths at URLs are processed concurrently."""
    paths = list(paths)
    if all(map(is_local, paths)) or len(paths) < 2:
        return [function(path) for path in paths]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(function, paths))


def digest_of(folder: AnyPath) -> str:
    """sha256 hex digest of names, sizes and versions below a URL's folder."""
    known = [(name, entry["size"], _version(entry)) for name, entry in listing(folder).items()]
    return hashlib.sha256(repr(known).encode()).hexdigest()
