"""SHA-256 of whole files, remembered, so that a model of many gigabytes is read once.

A digest counts for as long as the file's path, size, modification and change time and inode stay the same. It
is kept in memory and in ``file-digests.json`` of the user's cache folder ($XDG_CACHE_HOME/dare-job, else
~/.cache/dare-job). Where that folder cannot be read or written, only memory remembers.
"""

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

_LARGE = 1 << 20  # smaller files are read faster than looked up
_SETTLED_S = 2.0  # a file changed just now may change again within one tick of its time stamp
_remembered: dict[str, list] = {}  # resolved path: [size, mtime_ns, ctime_ns, inode, digest]


def sha256(file: Path) -> str:
    """Hex digest of a file's content, links followed. Raises OSError where it cannot be read."""
    file = Path(os.path.realpath(file, strict=True))
    key = _key(file)
    if key[0] >= _LARGE and (found := _find(str(file), key)):
        return found
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    settled = time.time() - max(key[1], key[2]) / 1e9 > _SETTLED_S
    if key[0] >= _LARGE and settled and _key(file) == key:
        _remembered[str(file)] = [*key, digest]
        _write()
    return digest


def _key(file: Path) -> list[int]:
    found = file.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _find(path: str, key: list[int]) -> str | None:
    for known in (_remembered, _read()):
        if known.get(path, [])[:-1] == key:
            _remembered[path] = known[path]
            return known[path][-1]
    return None


def _cache_file() -> Path:
    """Raises RuntimeError where the user has no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "dare-job" / "file-digests.json"


def _read() -> dict[str, list]:
    try:
        known = json.loads(_cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError, RecursionError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {path: entry for path, entry in known.items() if _is_entry(entry)}


def _is_entry(entry) -> bool:
    return (isinstance(entry, list) and len(entry) == 5 and all(isinstance(part, int) for part in entry[:4])
            and isinstance(entry[4], str) and len(entry[4]) == 64)


def _write() -> None:
    """Add what is remembered to the file on disk, and drop files that are gone. Failing costs only time."""
    known = {path: entry for path, entry in {**_read(), **_remembered}.items() if os.path.exists(path)}
    temporary = None
    try:
        target = _cache_file()
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".digests-", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(known, stream)
        os.replace(temporary, target)
    except (OSError, RuntimeError, ValueError):
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
