"""Saved pools of a folder: opening with the checks a user needs, sampling, and a cache for executors."""

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
    """Map the pool saved in ``folder``.

    Another tokenizer is refused. Text of another model or prompt still drafts, only worse, so it is logged
    as a warning. None as a hash: not compared.
    Raises PoolError as ``Index.open`` does.
    """
    index = Index.open(folder, expect_tokenizer=tokenizer_hash, verify=verify)
    for name, expected in (("model", model_hash), ("prompt", prompt_hash)):
        found = index.manifest.get(name)
        if expected is not None and found != expected:
            log.warning("pool %s holds text of another %s (%s, tonight %s): fewer drafts will be accepted",
                        folder, name, found, expected)
    return index


def sample(ids: Iterable[str], max_texts: int, seed: int = 0) -> set[str]:
    """At most ``max_texts`` of ``ids``: those with the smallest keyed hash.

    The same whatever the order of ``ids``, and nearly the same when a few ids come or go.
    """
    key = seed.to_bytes(8, "little", signed=True)
    distinct = set(ids)
    if len(distinct) <= max_texts:
        return distinct

    def rank(identifier: str) -> tuple[bytes, str]:
        return hashlib.blake2b(identifier.encode(), digest_size=8, key=key).digest(), identifier

    return set(sorted(distinct, key=rank)[:max_texts])


class Store:
    """Pools of ``folder`` by name, each opened at its first use; at most ``capacity`` stay open.

    Not shared between threads. A pool that left the cache stays mapped for as long as somebody holds it.
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
        """Names of the finished pools, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir()
                      if not path.name.startswith(".") and (path / "manifest.json").is_file())

    def __contains__(self, name: str) -> bool:
        return name in self._open or (self.folder / name / "manifest.json").is_file()

    def get(self, name: str) -> Index:
        """The pool ``name``. Raises PoolError where it is missing, damaged or foreign."""
        if not name or name.startswith(".") or Path(name).name != name:
            raise PoolError(f"pool name {name!r} is not the name of a folder: use one that the router made")
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        tokenizer, model, prompt, verify = self._checks
        index = open_pool(self.folder / name, tokenizer, model, prompt, verify)
        self._open[name] = index
        if len(self._open) > self._capacity:
            self._open.popitem(last=False)
        return index
