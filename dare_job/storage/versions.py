"""A stage's folder at a URL, where folders cannot change places: each writing of it has a folder of its own.

    _work/dt=D/plan/_current        the name of the version in force: one small object, written last
    _work/dt=D/plan/v-1a2b3c4d/     a version, with its _done.json

A published snapshot has no versions but flat files with new names in each publication, and the manifest as
what is written last: who goes by ``_manifest.json`` reads one publication, whole. A date that is being
removed has ``_removed.json`` instead, until all else is gone.
"""

import json
import re
import secrets
from contextlib import suppress

from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

POINTER = "_current"
MANIFEST = "_manifest.json"
REMOVED = "_removed.json"
_VERSION = re.compile(r"v-[0-9a-f]{8}")
_PARTIAL = re.compile(rf"\.{POINTER}\.[0-9a-f]+\.partial")  # at hdfs://


def current(folder: AnyPath) -> AnyPath:
    """The version in force of a folder that has versions; one that nobody wrote where there is none."""
    root = base_folder(folder)
    try:
        return root / (root / POINTER).read_text(encoding="utf-8")
    except FileNotFoundError:
        return root / "v-00000000"


def new_version(folder: AnyPath) -> AnyPath:
    """A new version to write, after removing what killed writers left."""
    clean_up(folder)
    return base_folder(folder) / f"v-{secrets.token_hex(4)}"


def activate(new: AnyPath, old: AnyPath) -> None:
    """Put a version in force and delete the one before."""
    with paths.atomic_writer(base_folder(old) / POINTER, "") as pointer:
        pointer.write(new.name.encode())
    clean_up(old)


def clean_up(folder: AnyPath) -> None:
    """Remove all versions but the one in force, and pointers that killed writers left half written."""
    kept = current(folder)
    for name in {name.split("/")[0] for name in paths.listing(kept.parent)} - {kept.name}:
        if _VERSION.fullmatch(name):
            paths.remove_tree(kept.parent / name)
        elif _PARTIAL.fullmatch(name):
            (kept.parent / name).unlink(missing_ok=True)


def discard(staging: AnyPath) -> None:
    """Remove what was written of a version, or of a date that is not published anew after all."""
    if _VERSION.fullmatch(staging.name):
        paths.remove_tree(staging)
    else:
        clean_up_snapshot(staging)


def clean_up_snapshot(folder: AnyPath) -> None:
    """Remove a published date's files that its manifest does not name; without one, none.

    Of a date that was hidden, remove all that is left.
    """
    there = paths.listing(folder)
    if REMOVED in there and MANIFEST not in there:
        paths.remove_below(folder, there.keys() - {REMOVED})
        paths.remove_below(folder, [REMOVED])
        return
    with suppress(FileNotFoundError, ValueError, KeyError):
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        named = {*found["files"], (found.get("codebook") or {}).get("file")}
        paths.remove_below(folder, [name for name in there if name == REMOVED or (
            name.endswith((".parquet", ".safetensors", ".partial")) and name not in named)])


def hide(folder: AnyPath) -> None:
    """Take a published date out of sight, in one step; ``sweep_snapshot`` removes what is left of it."""
    manifest = folder / MANIFEST
    if manifest.exists():
        with paths.atomic_writer(folder / REMOVED, "") as mark:
            mark.write(manifest.read_bytes())
        manifest.unlink(missing_ok=True)


def is_hidden(folder: AnyPath) -> bool:
    """True where a date was hidden and is not removed to its end."""
    return (folder / REMOVED).exists() and not (folder / MANIFEST).exists()


def base_folder(folder: AnyPath) -> AnyPath:
    """The folder whose version this is; itself where it is none."""
    return folder.parent if _VERSION.fullmatch(folder.name) else folder
