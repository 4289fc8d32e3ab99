"""A stage's folder at a URL, where folders cannot change places: each writing of it has a folder of its own.

    _work/dt=D/plan/_current        the name of the version in force: one small object, written last
    _work/dt=D/plan/v-1a2b3c4d/     a version, with its _done.json

A published snapshot has no versions but flat files with new names in each publication, and the manifest as
what is written last: who goes by ``_manifest.json`` reads one publication, whole.
"""

import json
import re
import secrets
from contextlib import suppress

from dare_job import files
from dare_job.files import AnyPath

POINTER = "_current"
MANIFEST = "_manifest.json"
_VERSION = re.compile(r"v-[0-9a-f]{8}")


def current(place: AnyPath) -> AnyPath:
    """The version in force of a folder that has versions; one that nobody wrote where there is none."""
    place = _place(place)
    try:
        return place / (place / POINTER).read_text(encoding="utf-8")
    except FileNotFoundError:
        return place / "v-00000000"


def staged(folder: AnyPath) -> AnyPath:
    """A new version to write, after removing what killed writers left."""
    settle(folder)
    return _place(folder) / f"v-{secrets.token_hex(4)}"


def replace(new: AnyPath, old: AnyPath) -> None:
    """Put a version in force and delete the one before."""
    with files.writing(_place(old) / POINTER, "") as pointer:
        pointer.write(new.name.encode())
    settle(old)


def settle(folder: AnyPath) -> None:
    """Remove all versions but the one in force."""
    kept = current(folder)
    for name in {name.split("/")[0] for name in files.listing(kept.parent)} - {kept.name}:
        if _VERSION.fullmatch(name):
            files.remove_tree(kept.parent / name)


def sweep_snapshot(folder: AnyPath) -> None:
    """Remove a published date's Parquet files that its manifest does not name; without one, none."""
    with suppress(FileNotFoundError, ValueError, KeyError):
        named = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        left = [name for name in files.listing(folder) if name.endswith(".parquet") and name not in named]
        files.each(lambda path: path.unlink(missing_ok=True), [folder / name for name in left])


def _place(folder: AnyPath) -> AnyPath:
    """The folder whose version this is; itself where it is none."""
    return folder.parent if _VERSION.fullmatch(folder.name) else folder
