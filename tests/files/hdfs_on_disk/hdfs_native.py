"""A local disk in place of HDFS: what ``dare_job.storage.hdfs`` calls of the package ``hdfs_native``.

``hdfs_native.fsspec`` is the installed package's, on top of the client below.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from pkgutil import extend_path

__path__ = extend_path([], __name__)
NAMED = "HDFS_ON_DISK"  # the folder that stands for /


@dataclass
class FileStatus:
    path: str
    length: int
    isdir: bool
    modification_time: int
    access_time: int = 0
    permission: int = 0o644
    owner: str = "somebody"
    group: str = "everybody"


class WriteOptions:
    overwrite = False


class FileReader:
    def __init__(self, place: Path):
        self._bytes = place.read_bytes()

    def __len__(self) -> int:
        return len(self._bytes)

    def read_range(self, offset: int, length: int) -> bytes:
        return self._bytes[offset:offset + length]


class Client:
    def __init__(self, url: str, config: dict):
        self._root = Path(os.environ[NAMED])

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def get_file_info(self, path: str) -> FileStatus:
        found = self._at(path).stat()
        folder = self._at(path).is_dir()
        return FileStatus(path, 0 if folder else found.st_size, folder, found.st_mtime_ns // 1_000_000)

    def list_status(self, path: str, recursive: bool = False):
        place = self._at(path)
        if place.is_file():
            yield self.get_file_info(path)
            return
        for entry in sorted(os.listdir(place)):
            try:
                found = self.get_file_info(f"{path.rstrip('/')}/{entry}")
            except FileNotFoundError:  # removed meanwhile; a NameNode tells a folder's entries in one answer
                continue
            yield found
            if recursive and found.isdir:
                yield from self.list_status(found.path, True)

    def read(self, path: str) -> FileReader:
        return FileReader(self._at(path))

    def create(self, path: str, options: WriteOptions):
        self._at(path).parent.mkdir(parents=True, exist_ok=True)
        return open(self._at(path), "wb" if options.overwrite else "xb")

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        if overwrite:
            os.replace(self._at(source), self._at(target))
        else:
            os.link(self._at(source), self._at(target))
            os.unlink(self._at(source))

    def delete(self, path: str, recursive: bool = False) -> bool:
        place = self._at(path)
        if not place.exists():
            return False
        if not place.is_dir():
            place.unlink(missing_ok=True)
        elif recursive:
            shutil.rmtree(place, ignore_errors=True)
        else:
            try:
                place.rmdir()
            except OSError:
                raise RuntimeError(f"PathIsNotEmptyDirectoryException: {path}") from None
        return True
