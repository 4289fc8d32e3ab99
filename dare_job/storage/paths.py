"""Paths of the job: on a disk (pathlib, as ever), or URLs, through fsspec (universal_pathlib's UPath).

A path of either kind is made by ``path`` and read like any pathlib path. Here is also what differs: a file at
a URL is there whole or not at all, and its writing can be made to depend on what was there before; a folder
is only a part of names, and is not renamed.
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

from dare_job.errors import ConfigError

if TYPE_CHECKING:
    from upath import UPath

    AnyPath = Path | UPath
else:
    AnyPath = Path

_EXTRAS = {"s3": "s3", "hdfs": "hdfs"}  # scheme: extra of pyproject.toml

_OPTIONS: dict[str, dict[str, Any]] = {  # a listing must be what is there now
    "s3": {"use_listings_cache": False}, "hdfs": {}}

_NEEDS = {"s3": "s3fs", "hdfs": "hdfs_native"}

_THREADS = 16  # requests at once: each waits some ten milliseconds for the store

T, R = TypeVar("T"), TypeVar("R")


def path(text: str | AnyPath, setting: str = "path") -> AnyPath:
    """A path from a setting's text: a local one, file://, s3:// or hdfs://.

    Raises ConfigError naming the setting: another scheme, a package that is missing, a secret in the URL, a
    cluster that HADOOP_CONF_DIR does not name.
    """
    if not isinstance(text, str) or "://" not in text:
        return Path(text) if isinstance(text, str) else text
    url = urlsplit(text)
    if url.scheme == "file":
        if url.netloc not in ("", "localhost"):
            raise ConfigError(f"{setting}: {text} names the host {url.netloc}; write file:///folder")
        return Path(unquote(url.path))
    scheme = {"s3a": "s3", "s3n": "s3"}.get(url.scheme, url.scheme)  # as Hadoop calls it
    if scheme not in _EXTRAS:
        raise ConfigError(f"{setting}: {url.scheme}:// is not supported; valid: a path, file://, s3://, "
                          "hdfs://")
    if url.password is not None or (scheme == "s3" and "@" in url.netloc) or url.query:
        raise ConfigError(f"{setting}: a URL here holds no user, password or query, as it is written to logs "
                          "and manifests; credentials come from the environment (AWS_ACCESS_KEY_ID, "
                          "AWS_PROFILE, a role)")
    if any(mark in text for mark in "*[]?"):
        raise ConfigError(f"{setting} = {text}: a URL here is one place, without * ? [ ]")
    if scheme == "hdfs" and url.netloc:
        raise ConfigError(f"{setting} = {text}: write hdfs:///folder; which cluster, HADOOP_CONF_DIR says")
    if scheme == "s3" and not url.netloc:
        raise ConfigError(f"{setting} = {text}: write s3://BUCKET/folder")
    return _remote(scheme, text.partition("://")[2].rstrip("/"), setting)


def _remote(scheme: str, rest: str, setting: str) -> AnyPath:
    from importlib import import_module

    try:
        import_module(_NEEDS[scheme])
        from fsspec import register_implementation
        from upath import UPath
    except ImportError as error:
        raise ConfigError(f"{setting}: {scheme}:// needs the package {error.name}: install dare-job with its "
                          f"extra {_EXTRAS[scheme]} (docs/how-to/object-stores.md)") from None
    if scheme == "hdfs":
        register_implementation("hdfs", "dare_job.storage.hdfs.HdfsFileSystem", clobber=True)
    found = UPath(f"{scheme}://{rest}", **_OPTIONS[scheme])
    try:
        found.fs  # noqa: B018  made now, so that all paths made from this one share its connections
    except OSError as error:
        raise ConfigError(f"{setting} = {found}: {error}; HADOOP_CONF_DIR must name the folder of "
                          "core-site.xml and hdfs-site.xml, with the cluster as fs.defaultFS") from error
    return found


def is_local(path: AnyPath | str) -> bool:
    return not hasattr(path, "fs")


def arrow_location(path: AnyPath) -> tuple[Any, str]:
    """Filesystem and name, as pyarrow takes them; None as the filesystem of a local path."""
    if is_local(path):
        return None, str(path)
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return PyFileSystem(FSSpecHandler(path.fs)), path.path


def parquet_dataset(folder: AnyPath, **options):
    """pyarrow's dataset of the Parquet files of a folder."""
    import pyarrow.dataset as ds

    filesystem, name = arrow_location(folder)
    return ds.dataset(name, filesystem=filesystem, **options)


@contextmanager
def arrow_source(path: AnyPath) -> Iterator[Path | BinaryIO]:
    """What pyarrow reads a file from: a local path itself, else an open file."""
    if is_local(path):
        yield path
    else:
        with path.open("rb") as file:
            yield file


@contextmanager
def arrow_sink(path: AnyPath) -> Iterator[Path | BinaryIO]:
    """What pyarrow writes a file to; a URL's file is there, whole, after the block, or not at all."""
    if is_local(path):
        yield path
    else:
        with _uploading(path) as file:
            yield file


@contextmanager
def atomic_writer(path: AnyPath, partial: str) -> Iterator[BinaryIO]:
    """An open binary file; after the block its content is under ``path``, whole; on an error nothing changed.

    partial  name of the file beside it that is renamed, where a file can be
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
    """Through a temporary file: a stream that is closed early would leave a part as the whole."""
    with tempfile.NamedTemporaryFile(prefix="dare-job-") as file:
        yield file
        file.flush()
        path.fs.put_file(file.name, path.path)


def upload(folder: Path, to: AnyPath) -> None:
    """Copy a local folder's files to a URL, its manifest.json last, as it speaks of the others."""
    files = sorted((file for file in folder.rglob("*") if file.is_file()),
                   key=lambda file: (file.name == "manifest.json", file))
    for file in files:
        to.fs.put_file(str(file), (to / file.relative_to(folder).as_posix()).path)


def version_of(path: AnyPath) -> str:
    """Changes with an object's content. Raises FileNotFoundError where there is none."""
    return _version(path.fs.info(path.path))


def _version(entry: dict) -> str:
    return str(entry.get("ETag") or entry.get("mtime"))


def file_versions(found: Iterable[AnyPath]) -> list[list]:
    """[bytes, modification time in ns or version] of each file: part of a fingerprint."""
    found = list(found)
    if all(map(is_local, found)):
        return [[stat.st_size, stat.st_mtime_ns] for stat in (file.stat() for file in found)]
    if len(found) < 2 * _THREADS:
        entries = map_paths(lambda file: file.fs.info(file.path), found)
    else:
        known = {parent: listing(parent) for parent in {file.parent for file in found}}
        entries = [known[file.parent][file.name] for file in found]
    return [[entry["size"], _version(entry)] for entry in entries]


def listing(folder: AnyPath) -> dict[str, dict]:
    """Objects below a URL's folder by relative name, with what the store says of them: size, ETag."""
    root = folder.path.rstrip("/") + "/"
    found = folder.fs.find(folder.path, detail=True)
    return {name.removeprefix(root): entry for name, entry in sorted(found.items()) if name.startswith(root)}


def visible_files(folder: AnyPath, suffix: str = "") -> list[AnyPath]:
    """Files below a URL's folder, neither they nor their folders hidden (``.`` or ``_``), in one listing."""
    return [folder / name for name in listing(folder)
            if name.endswith(suffix) and not any(part.startswith((".", "_")) for part in name.split("/"))]


def folder_date(name: str) -> str | None:
    """The date of a folder's name ``dt=YYYY-MM-DD``; None for any other name, ``dt=2026-01-02.bak`` too."""
    text = name.removeprefix("dt=")
    try:
        return text if name != text and date.fromisoformat(text).isoformat() == text else None
    except ValueError:
        return None


def dated_folders(*parents: AnyPath) -> list[AnyPath]:
    """Folders ``dt=YYYY-MM-DD`` below the given ones, by date; a copy such as ``dt=D_old`` is none."""
    found = [folder for parent in parents for folder in parent.glob("dt=*") if folder_date(folder.name)]
    return sorted(found, key=lambda folder: folder.name)


def make_folder(folder: AnyPath) -> None:
    """Make a folder, and those above it, where it is missing; at a URL it is there with its first file."""
    if is_local(folder):
        folder.mkdir(parents=True, exist_ok=True)


def remove_tree(folder: AnyPath) -> None:
    """Delete a folder with all that is in it; it may be missing."""
    import shutil

    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    if folder.protocol == "hdfs":
        folder.fs.rm(folder.path, recursive=True)
    else:
        remove_below(folder, listing(folder))


def remove_below(folder: AnyPath, names: Iterable[str]) -> None:
    """Delete files of ``listing``, many with one request, and folders that are empty then."""
    names = list(names)
    if names:
        folder.fs.rm([folder.fs._strip_protocol(str(folder / name)) for name in names])
        remove_empty(folder, names)


def remove_empty(folder: AnyPath, names: Iterable[str] = ()) -> None:
    """Remove a URL's folder, and those in it that these files were in, unless there is something in them."""
    if folder.protocol != "hdfs":  # a folder of S3 is gone with its last file
        return
    found = {folder}
    for name in names:
        found.update((folder / name).parents[:name.count("/")])
    for empty in sorted(found, key=lambda path: -len(path.parts)):
        with suppress(OSError):
            empty.fs.rmdir(empty.path)


def map_paths(function: Callable[[T], R], paths: Iterable[T]) -> list[R]:
    """``function`` of each path, in order; several at once where each waits for a store."""
    paths = list(paths)
    if all(map(is_local, paths)) or len(paths) < 2:
        return [function(path) for path in paths]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(function, paths))


def digest_of(folder: AnyPath) -> str:
    """sha256 hex digest of names, sizes and versions below a URL's folder."""
    known = [(name, entry["size"], _version(entry)) for name, entry in listing(folder).items()]
    return hashlib.sha256(repr(known).encode()).hexdigest()
