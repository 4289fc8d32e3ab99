"""fsspec file system for HDFS on top of ``hdfs-native``, which needs neither Java nor Hadoop.

It behaves like an object store: files appear complete, through a rename that the NameNode does atomically,
and folders exist once they contain a file. libhdfs (pyarrow) does not suffice: it can neither create a file
only if it is missing nor rename without replacing, and the lock needs both.
"""

import io
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from hdfs_native import Client, WriteOptions

_PART_BYTES = 4 << 20  # a smaller file is read at once
_TRIES = 3
_THREADS = 16


class HdfsError(OSError):
    """An HDFS error, reduced to its first line."""


def _as_os_error(method: Callable) -> Callable:
    """Decorator: raise HDFS errors as OSError, without the NameNode's Java stack trace."""
    @wraps(method)
    def call(*arguments, **options):
        try:
            return method(*arguments, **options)
        except (FileNotFoundError, FileExistsError, PermissionError, HdfsError):
            raise
        except (OSError, RuntimeError, ValueError) as error:
            lines = str(error).replace("\\n", "\n").splitlines() or [type(error).__name__]
            kind = PermissionError if "AccessControlException" in lines[0] else HdfsError
            raise kind(lines[0]) from error
    return call


class HdfsFileSystem(AbstractFileSystem):
    """The cluster that ``fs.defaultFS`` in HADOOP_CONF_DIR's core-site.xml names.

    A folder is created with its first file, so ``mkdir`` does nothing.
    """

    protocol = "hdfs"
    root_marker = "/"

    @_as_os_error
    def __init__(self, **options):
        super().__init__(**options)
        self.client = Client("hdfs://")

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(part) for part in path]
        return "/" + str(path).removeprefix("hdfs://").strip("/")

    @_as_os_error
    def info(self, path: str, **_) -> dict:
        return _entry(self.client.get_file_info(self._strip_protocol(path)))

    def exists(self, path: str, **_) -> bool:
        return self._kind(path) is not None

    def isdir(self, path: str) -> bool:
        return self._kind(path) == "directory"

    def isfile(self, path: str) -> bool:
        return self._kind(path) == "file"

    def _kind(self, path: str) -> str | None:
        """"file" or "directory"; None if the path does not exist. Raises if the NameNode does not respond."""
        try:
            return self.info(path)["type"]
        except FileNotFoundError:
            return None

    @_as_os_error
    def ls(self, path: str, detail: bool = True, **_) -> list:
        name = self._strip_protocol(path)
        entries = [_entry(status) for status in self._there(name)]
        if not entries and not self.exists(name):
            raise FileNotFoundError(name)
        return entries if detail else [entry["name"] for entry in entries]

    def walk(self, path, maxdepth=None, topdown=True, on_error="omit", **options):
        """Like fsspec's, but skips only missing paths: otherwise ``glob`` would hide errors."""
        def missing(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        return super().walk(path, maxdepth, topdown, missing if on_error == "omit" else on_error, **options)

    def _there(self, path: str) -> list:
        """Entries of a folder. Retries if the folder was removed and created again meanwhile."""
        for _ in range(_TRIES):
            try:
                return list(self.client.list_status(path, False))
            except FileNotFoundError:
                if not self.exists(path):
                    return []
        raise HdfsError(f"{path} exists, but listing its files failed {_TRIES} times")

    @_as_os_error
    def rmdir(self, path: str) -> None:
        """Remove an empty folder. Raises HdfsError if it is not empty."""
        self.client.delete(self._strip_protocol(path), False)

    @_as_os_error
    def rm(self, path, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, or a folder with its contents. Missing paths are ignored."""
        names = self._strip_protocol(path)
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(lambda name: self.client.delete(name, recursive),
                             names if isinstance(names, list) else [names]))

    def rm_file(self, path: str) -> None:
        self.rm(path)

    @_as_os_error
    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_) -> bytes:
        """Read a file. Retries if it is replaced meanwhile, as HDFS deletes the old file's blocks."""
        name = self._strip_protocol(path)
        for left in reversed(range(_TRIES)):
            try:
                reader = self.client.read(name)
                first, last, _ = slice(start, end).indices(len(reader))
                return bytes(reader.read_range(first, max(0, last - first)))
            except FileNotFoundError:
                raise
            except (OSError, RuntimeError):
                if not left:
                    raise
        raise AssertionError

    @_as_os_error
    def _open(self, path: str, mode: str = "rb", block_size=None, autocommit=True, cache_options=None, **_):
        if mode == "wb":
            return _WriteBuffer(self, path)
        if mode != "rb":
            raise ValueError(f"mode {mode!r} is not supported on HDFS: use rb or wb")
        reader = self.client.read(self._strip_protocol(path))
        if len(reader) <= _PART_BYTES:
            return io.BytesIO(self.cat_file(path))
        return _ReadFile(self, path, reader)

    @_as_os_error
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_) -> None:
        """Write a file. With mode "create", raises FileExistsError if the file exists."""
        self._write(path, [value], overwrite=mode != "create")

    @_as_os_error
    def put_file(self, lpath: str, rpath: str, **_) -> None:
        with open(lpath, "rb") as file:
            self._write(rpath, iter(lambda: file.read(_PART_BYTES), b""))

    def _write(self, path: str, parts: Iterable[bytes], overwrite: bool = True) -> None:
        folder, _, name = self._strip_protocol(path).rpartition("/")
        partial = f"{folder}/.{name}.{secrets.token_hex(6)}.partial"
        try:
            writer = self.client.create(partial, WriteOptions())
            for part in parts:
                writer.write(part)
            writer.close()
            self._rename(partial, f"{folder}/{name}", overwrite)
        except BaseException:
            with suppress(OSError, RuntimeError):
                self.client.delete(partial, False)
            raise

    def _rename(self, partial: str, path: str, overwrite: bool) -> None:
        """Rename in one step at the NameNode. A retry after a lost response fails although it was done."""
        written = self.client.get_file_info(partial)
        try:
            self.client.rename(partial, path, overwrite)
        except (FileNotFoundError, FileExistsError):
            if not self._was_moved(partial, path, written):
                raise

    def _was_moved(self, partial: str, path: str, written) -> bool:
        with suppress(FileNotFoundError):
            now = self.client.get_file_info(path)
            if (now.modification_time, now.length) == (written.modification_time, written.length):
                self.client.get_file_info(partial)  # raises FileNotFoundError if it was moved
            return False
        return self.exists(path)


def _entry(status) -> dict:
    """File status as a dict with the keys that s3fs uses."""
    written = datetime.fromtimestamp(status.modification_time / 1000, UTC)
    return {"name": status.path, "size": status.length, "type": "directory" if status.isdir else "file",
            "LastModified": written, "ETag": f"{status.modification_time}-{status.length}"}


class _ReadFile(AbstractBufferedFile):
    """A large file, of which only the requested ranges are read."""

    def __init__(self, fs: HdfsFileSystem, path: str, reader):
        super().__init__(fs, path, "rb", block_size=_PART_BYTES, size=len(reader))
        self._reader = reader

    @_as_os_error
    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self._reader.read_range(start, end - start))


class _WriteBuffer(io.BytesIO):
    """Buffer written as one file on close. After an error in its block, or if dropped, nothing is written."""

    def __init__(self, fs: HdfsFileSystem, path: str):
        super().__init__()
        self._place: tuple[HdfsFileSystem, str] | None = (fs, path)

    def close(self) -> None:
        place, self._place = self._place, None
        try:
            if place is not None:
                place[0].pipe_file(place[1], self.getvalue())
        finally:
            super().close()

    def __exit__(self, kind, error, trace) -> None:
        if kind is not None:
            self._place = None
        self.close()

    def __del__(self):
        self._place = None
