"""Progress of chunks that are not committed yet: one small file for each shard that a worker decodes.

    generate/open/<shard>.json    totals of finished rows since the last commit and of rows being decoded

A worker replaces its file every few seconds and deletes it when the shard ends. The driver adds these totals
to those of the committed chunks. A file that no longer changes belongs to a dead worker and does not count.
"""

import json
import time
from dataclasses import asdict

from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables.chunk_files import Totals

FOLDER = "open"
_SILENT_S = 90.0  # a file that does not change for this long no longer counts


def write(folder: AnyPath, shard: int, token: str, totals: Totals) -> None:
    """Replace a shard's file. ``token``: of the shard plan."""
    paths.make_folder(folder / FOLDER)
    file = _file(folder, shard)
    text = json.dumps({"plan": token, "at_s": time.time(), "totals": asdict(totals)})
    if not paths.is_local(file):
        file.write_text(text, encoding="utf-8")
        return
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text, encoding="utf-8")  # not synced to the disk: a lost report costs nothing
    partial.replace(file)


def remove(folder: AnyPath, shard: int) -> None:
    """Delete a shard's file if it exists."""
    _file(folder, shard).unlink(missing_ok=True)


class OpenChunks:
    """Reads the files of the shards of a plan."""

    def __init__(self, folder: AnyPath, token: str):
        self._folder, self._token = folder / FOLDER, token
        self._changed: dict[str, tuple[float, float]] = {}  # file name -> its at_s, when it was first seen

    def clear(self) -> None:
        """Delete the files of dead workers. Call it while no worker runs."""
        for pattern in ("*.json", ".*.partial"):
            for file in self._folder.glob(pattern):
                file.unlink(missing_ok=True)

    def totals(self) -> Totals:
        """Sum over all workers that still write."""
        now, total = time.monotonic(), Totals()
        for file in self._folder.glob("*.json"):
            try:
                record = json.loads(file.read_text(encoding="utf-8"))
            except FileNotFoundError:  # its shard ended meanwhile
                continue
            if record["plan"] != self._token:
                continue
            if self._changed.get(file.name, (None,))[0] != record["at_s"]:
                self._changed[file.name] = record["at_s"], now
            if now - self._changed[file.name][1] < _SILENT_S:
                total += Totals(**record["totals"])
        return total


def _file(folder: AnyPath, shard: int) -> AnyPath:
    return folder / FOLDER / f"{shard:05d}.json"
