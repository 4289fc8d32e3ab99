"""The saved pools of a folder, and sampling of texts for a pool."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from pools import manifest
from pools.index import Index

_CAPACITY = 64  # open pools of a store


def names(folder: Path) -> list[str]:
    """Names of the complete pools of a folder, ascending; none if there is no such folder."""
    return sorted(path.parent.name for path in folder.glob(f"[!.]*/{manifest.NAME}"))


def sample_ids(ids: Iterable[str], max_texts: int, seed: int = 0) -> set[str]:
    """Sample at most ``max_texts`` distinct ids: those with the smallest keyed hash.

    The sample does not depend on the order of ``ids``, and changes little if ids are added or removed.
    """
    key = seed.to_bytes(8, "little", signed=True)
    distinct = set(ids)
    if len(distinct) <= max_texts:
        return distinct

    def rank(identifier: str) -> tuple[bytes, str]:
        return hashlib.blake2b(identifier.encode(), digest_size=8, key=key).digest(), identifier

    return set(sorted(distinct, key=rank)[:max_texts])


class Store:
    """Pools of a folder by name, opened at first use; the most recently used ones stay open.

    Not thread-safe. A pool that the cache evicts stays mapped while a caller holds a reference to it.

    Parameters
    ----------
    folder
        Path with one subfolder per pool.
    tokenizer
        As in ``Index.open``.
    """

    def __init__(self, folder: str | Path, tokenizer: str | None = None, capacity: int = _CAPACITY):
        self.folder, self._tokenizer, self._capacity = Path(folder), tokenizer, capacity
        self._open: OrderedDict[str, Index] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._open or (self.folder / name / manifest.NAME).is_file()

    def get(self, name: str) -> Index:
        """Return the pool ``name``.

        Raises
        ------
        PoolError
            The pool is missing, damaged or incompatible.
        """
        if name not in self._open:
            self._open[name] = Index.open(self.folder / name, self._tokenizer)
            if len(self._open) > self._capacity:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return self._open[name]
