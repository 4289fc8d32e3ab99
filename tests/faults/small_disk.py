"""A disk of its own, small enough to be full: a tmpfs that is mounted, or a small one that is there."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SHARED = Path("/dev/shm")  # 64 MiB in most containers, which may not mount
_SMALL_BYTES = 256 << 20
_BALLAST = ".ballast"


class Disk:
    """A folder on a disk of its own; the ballast takes what nobody else should."""

    def __init__(self, folder: Path, mounted: bool):
        self.folder, self._mounted = folder, mounted

    def fill(self, leave_bytes: int) -> None:
        """Leave only so many bytes free."""
        found = os.statvfs(self.folder)
        with open(self.folder / _BALLAST, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, found.f_bavail * found.f_frsize - leave_bytes))

    def free(self) -> None:
        (self.folder / _BALLAST).unlink()

    def read_only(self, on: bool) -> None:
        """Refuse every change, or take them again."""
        if not self._mounted:
            pytest.skip("needs the right to mount: run the tests as root, or under `unshare -Urm`")
        subprocess.run(["mount", "-o", f"remount,{'ro' if on else 'rw'}", self.folder], check=True)


@contextmanager
def small_disk(folder: Path, size: str = "16m") -> Iterator[Disk]:
    """A disk at ``folder``, which is made; skips where none can be had."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
                             capture_output=True).returncode == 0
    if mounted:
        try:
            yield Disk(folder, True)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
    elif _SHARED.is_dir() and 0 < shutil.disk_usage(_SHARED).total <= _SMALL_BYTES:
        with tempfile.TemporaryDirectory(dir=_SHARED) as name:
            yield Disk(Path(name), False)
    else:
        pytest.skip("needs a small disk: run the tests as root, or under `unshare -Urm`")
