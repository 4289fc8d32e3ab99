"""fsspec file system for HDFS: that of ``hdfs-native``, which needs neither Java nor Hadoop.

It is changed to behave like an object store: files appear complete, through a rename that the NameNode does
atomically, and errors never look like missing files. libhdfs (pyarrow) does not suffice: it can neither
create a file only if it is missing nor rename without replacing, and the lock needs both.
"""

import io
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial, wraps

from fsspec.spec import AbstractBufferedFile
from hdfs_native import WriteOptions
from hdfs_native.fsspec import HdfsFileSystem as NativeFileSystem

_PART_BYTES = 4 << 20  # a smaller file is read at once
_TRIES = 3
_THREADS = 16
_KEPT = (FileNotFoundError, FileExistsError, PermissionError)


class HdfsError(OSError):
    """An HDFS error, reduced to its first line."""


def _as_os_error(method: Callable) -> Callable:
    """Decorator: raise HDFS errors as OSError, without the NameNode's Java stack trace."""
    @wraps(method)
    def call(*arguments, **options):
        try:
            return method(*arguments, **options)
        except (OSError, RuntimeError, ValueError) as error:
            line = (str(error) or repr(error)).replace("\\n", "\n").splitlines()[0]
            kind = PermissionError if "AccessControlException" in line else HdfsError
            raise (type(error) if isinstance(error, _KEPT) else kind)(line) from error
    return call


class HdfsFileSystem(NativeFileSystem):
    """The cluster that ``fs.defaultFS`` in HADOOP_CONF_DIR's core-site.xml names."""

    __init__ = _as_os_error(NativeFileSystem.__init__)
    info = _as_os_error(NativeFileSystem.info)
    rmdir = _as_os_error(NativeFileSystem.rmdir)

    @classmethod
    def _strip_protocol(cls, path) -> str:
        """Unlike the base class, keep ``?``, ``#`` and ``;`` in names, and no trailing slash."""
        return "/" + str(path).removeprefix("hdfs://").strip("/")

    def _convert_file_status(self, file_status) -> dict:
        """Add the modification time and a version, with the keys that s3fs uses."""
        written_ms = file_status.modification_time
        return super()._convert_file_status(file_status) | {
            "LastModified": datetime.fromtimestamp(written_ms / 1000, UTC),
            "ETag": f"{written_ms}-{file_status.length}"}

    def isdir(self, path: str) -> bool:
        return self._kind(path) == "directory"

    def isfile(self, path: str) -> bool:
        return self._kind(path) == "file"

    def _kind(self, path: str) -> str | None:
        """"file" or "directory"; None if the path does not exist. Raises if the NameNode does not respond."""
        with suppress(FileNotFoundError):
            return self.info(path)["type"]
        return None

    @_as_os_error
    def ls(self, path: str, detail: bool = True, **_) -> list:
        """List a folder. Retries if it was removed and created again meanwhile.

        Raises
        ------
        FileNotFoundError
            The path does not exist.
        HdfsError
            The path exists, but listing its files failed ``_TRIES`` times.
        """
        for _ in range(_TRIES):
            try:
                return super().ls(path, detail)
            except FileNotFoundError:
                if not self.exists(path):
                    raise
        raise HdfsError(f"{path} exists, but listing its files failed {_TRIES} times")

    def walk(self, path: str, *arguments, **options) -> Iterator:
        """Like fsspec's, but skip only missing paths: otherwise ``glob`` would hide errors."""
        with suppress(FileNotFoundError):
            yield from super().walk(path, *arguments, on_error="raise", **options)

    def mkdir(self, path: str, create_parents: bool = True, **_) -> None:
        """Do nothing: a folder is created with its first file."""

    @_as_os_error
    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, or a folder with its contents. Missing paths are ignored."""
        remove = partial(super().rm, recursive=recursive, maxdepth=maxdepth)
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(remove, [path] if isinstance(path, str) else path))

    @_as_os_error
    def _open(self, path: str, mode: str = "rb", **_) -> io.IOBase:
        if mode == "wb":
            return _File(self, path, mode)
        if mode != "rb":
            raise ValueError(f"mode {mode!r} is not supported on HDFS: use rb or wb")
        for _ in range(_TRIES):
            reader = self.client.read(self._strip_protocol(path))
            if len(reader) > _PART_BYTES:
                break
            with suppress(OSError, RuntimeError):  # replaced meanwhile: HDFS deletes the old file's blocks
                return io.BytesIO(reader.read_range(0, len(reader)))
        return _File(self, path, mode, size=len(reader), reader=reader)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_) -> None:
        """Write a file.

        Raises
        ------
        FileExistsError
            The file exists, and the mode is "create".
        """
        self._write(path, [value], overwrite=mode != "create")

    def put_file(self, lpath: str, rpath: str, **_) -> None:
        with open(lpath, "rb") as file:
            self._write(rpath, iter(partial(file.read, _PART_BYTES), b""))

    @_as_os_error
    def _write(self, path: str, parts: Iterable[bytes], overwrite: bool = True) -> None:
        folder, _, name = self._strip_protocol(path).rpartition("/")
        hidden = f"{folder}/.{name}.{secrets.token_hex(6)}.partial"
        try:
            with self.client.create(hidden, WriteOptions()) as writer:
                writer.writelines(parts)
            version = self.info(hidden)["ETag"]
            try:
                self.client.rename(hidden, f"{folder}/{name}", overwrite)
            except (FileNotFoundError, FileExistsError):  # perhaps a retry after the response was lost
                if self.exists(hidden) or self.info(path)["ETag"] != version:
                    raise
        except BaseException:
            with suppress(OSError, RuntimeError):
                self.client.delete(hidden, False)
            raise


class _File(AbstractBufferedFile):
    """A large file that is read in parts, or a buffer that is written as one file when it is closed.

    After an error in its block, or if it is dropped, nothing is written.
    """

    @_as_os_error
    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.kwargs["reader"].read_range(start, end - start)

    def _upload_chunk(self, final: bool = False) -> bool:
        if final:
            self.fs.pipe_file(self.path, self.buffer.getvalue())
        return final

    def __exit__(self, kind, error, trace) -> None:
        self.closed = self.closed or kind is not None
        self.close()

    def __del__(self):
        self.closed = True
