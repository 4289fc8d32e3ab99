"""Opening saved pools: compatibility checks, a cache for executors, and sampling of texts for a pool."""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from pools.errors import PoolError
from pools.index import Index

log = logging.getLogger(__name__)


def open_pool(
    folder: str | Path,
    tokenizer_hash: str | None = None,
    model_hash: str | None = None,
    prompt_hash: str | None = None,
    verify: bool = True,
) -> Index:
    """Memory-map a saved pool and compare its manifest with the current model and prompt.

    Parameters
    ----------
    folder : path of the pool
    tokenizer_hash : hash that the pool must have been built with; None: not compared
    model_hash, prompt_hash : hashes of the current model and prompt; None: not compared. A pool with other
        hashes is opened with a warning, because drafts from other texts are accepted less often
    verify : whether to compare the SHA-256 of every file

    Raises
    ------
    PoolError
        As ``Index.open``; also for another tokenizer.
    """
    index = Index.open(folder, expect_tokenizer=tokenizer_hash, verify=verify)
    for name, expected in (("model", model_hash), ("prompt", prompt_hash)):
        actual = index.manifest.get(name)
        if expected is not None and actual != expected:
            log.warning("pool %s has texts of another %s (%s, this run has %s): expect fewer accepted drafts",
                        folder, name, actual, expected)
    return index


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
    """Pools of a folder by name, opened at first use. An LRU cache keeps at most ``capacity`` open.

    Not thread-safe. A pool that the cache evicts stays mapped while a caller holds a reference to it.

    Parameters
    ----------
    folder : path with one subfolder per pool
    tokenizer_hash, model_hash, prompt_hash, verify : as in ``open_pool``
    capacity : maximum number of open pools
    """

    def __init__(
        self,
        folder: str | Path,
        tokenizer_hash: str | None = None,
        model_hash: str | None = None,
        prompt_hash: str | None = None,
        verify: bool = True,
        capacity: int = 64,
    ):
        self.folder = Path(folder)
        self._checks = (tokenizer_hash, model_hash, prompt_hash, verify)
        self._capacity = capacity
        self._open: OrderedDict[str, Index] = OrderedDict()

    def names(self) -> list[str]:
        """Names of the complete pools, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir()
                      if not path.name.startswith(".") and (path / "manifest.json").is_file())

    def __contains__(self, name: str) -> bool:
        return name in self._open or (self.folder / name / "manifest.json").is_file()

    def get(self, name: str) -> Index:
        """Return the pool ``name``. Raises PoolError if it is missing, damaged or incompatible."""
        if not name or name.startswith(".") or Path(name).name != name:
            raise PoolError(f"pool name {name!r} is not a folder name: use a name that the router returned")
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        tokenizer, model, prompt, verify = self._checks
        index = open_pool(self.folder / name, tokenizer, model, prompt, verify)
        self._open[name] = index
        if len(self._open) > self._capacity:
            self._open.popitem(last=False)
        return index
