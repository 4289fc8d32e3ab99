"""Versioned stage folders at URLs, where folders cannot be swapped: every write creates a new folder.

    _work/dt=D/plan/_current        name of the current version: a small object, written last
    _work/dt=D/plan/v-1a2b3c4d/     a version, with its _done.json

Published snapshots have no versions. Each publication writes files with new names and then the manifest, so
a reader that follows ``_manifest.json`` reads exactly one publication. A date that is being removed has
``_removed.json`` in place of the manifest until everything else is deleted.
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
    """Folder of the current version. If there is none, a folder that does not exist."""
    root = base_folder(folder)
    try:
        return root / (root / POINTER).read_text(encoding="utf-8")
    except FileNotFoundError:
        return root / "v-00000000"


def new_version(folder: AnyPath) -> AnyPath:
    """Folder for a new version. Removes what killed writers left first."""
    clean_up(folder)
    return base_folder(folder) / f"v-{secrets.token_hex(4)}"


def activate(new: AnyPath, old: AnyPath) -> None:
    """Make a version the current one and delete its predecessor."""
    with paths.atomic_writer(base_folder(old) / POINTER, "") as pointer:
        pointer.write(new.name.encode())
    clean_up(old)


def clean_up(folder: AnyPath) -> None:
    """Remove all versions except the current one, and incomplete pointers of killed writers."""
    version = current(folder)
    for name in {name.split("/")[0] for name in paths.listing(version.parent)} - {version.name}:
        if _VERSION.fullmatch(name):
            paths.remove_tree(version.parent / name)
        elif _PARTIAL.fullmatch(name):
            (version.parent / name).unlink(missing_ok=True)


def discard(staging: AnyPath) -> None:
    """Remove an abandoned version, or the files of an abandoned publication."""
    if _VERSION.fullmatch(staging.name):
        paths.remove_tree(staging)
    else:
        clean_up_snapshot(staging)


def clean_up_snapshot(folder: AnyPath) -> None:
    """Remove files of a published date that its manifest does not name; nothing if it has no manifest.

    Removes all files of a hidden date.
    """
    files = paths.listing(folder)
    if REMOVED in files and MANIFEST not in files:
        paths.remove_below(folder, files.keys() - {REMOVED})
        paths.remove_below(folder, [REMOVED])
        return
    with suppress(FileNotFoundError, ValueError, KeyError):
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        named = {*manifest["files"], (manifest.get("codebook") or {}).get("file")}
        paths.remove_below(folder, [name for name in files if name == REMOVED or (
            name.endswith((".parquet", ".safetensors", ".partial")) and name not in named)])


def hide(folder: AnyPath) -> None:
    """Hide a published date from readers in one step. ``clean_up_snapshot`` then removes its files."""
    manifest = folder / MANIFEST
    if manifest.exists():
        with paths.atomic_writer(folder / REMOVED, "") as mark:
            mark.write(manifest.read_bytes())
        manifest.unlink(missing_ok=True)


def is_hidden(folder: AnyPath) -> bool:
    """True if a date was hidden and its removal is not complete."""
    return (folder / REMOVED).exists() and not (folder / MANIFEST).exists()


def base_folder(folder: AnyPath) -> AnyPath:
    """The folder that a version belongs to; the folder itself if it is no version."""
    return folder.parent if _VERSION.fullmatch(folder.name) else folder
