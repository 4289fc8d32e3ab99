"""Replayed texts and the pools that draft for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dare_job.data import recorded_texts as texts
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.replay.options import Source
from pools.index import Index

POOLS = ("own", "group", "global")


@dataclass(frozen=True)
class Corpus:
    """Replayed texts with their ids, and the texts of the pools.

    Attributes
    ----------
    old
        Previous texts by id.
    groups
        Group by id.
    """

    test: list[np.ndarray]
    test_ids: list[str]
    rest: list[np.ndarray]
    rest_ids: list[str]
    distinct: int
    old: dict[str, np.ndarray]
    groups: dict[str, str]


def check(source: Source) -> None:
    """Check the pools to draft from.

    Raises
    ------
    ConfigError
        A pool is unknown or lacks its file, or there is no pool.
    """
    if not source.pool or set(source.pool) - set(POOLS):
        raise ConfigError(f"--pool {','.join(source.pool)}: choose from {', '.join(POOLS)}")
    if "group" in source.pool and source.groups is None:
        raise ConfigError("--pool group needs --groups FILE, a table of entity_id and group")
    if "own" in source.pool and source.old is None:
        raise ConfigError("--pool own needs --old FILE: texts of the same ids from an earlier date, with the "
                          "same columns")


def load(source: Source) -> Corpus:
    """Held-out texts, and the texts of the pools: those of other ids in the file, or in ``--old`` if given.

    Raises
    ------
    ConfigError
        The file has too few texts.
    DataError
        A file cannot be read, an id is duplicated, or no held-out text has two tokens.
    """
    encode, old = texts.load_tokenizer(source.tokenizer), {}
    if source.old:
        read = texts.read(source.old, source.column, source.id_column)
        old = dict(zip(read.ids, encode(read.texts), strict=True))
    read = texts.read(source.text, source.column, source.id_column)
    if not 0 < source.held_out < len(read.ids):
        raise ConfigError(f"--held-out {source.held_out} must be above 0 and below {len(read.ids)}, the "
                          f"texts of {source.text}")
    if len(set(read.ids)) < len(read.ids):
        raise DataError(f"{source.text}: column {source.id_column} has duplicate ids")
    tokens = encode(read.texts)
    chosen = texts.held_out(read.ids, source.held_out)
    test = [place for place in np.flatnonzero(chosen) if tokens[place].size > 1]
    if not test:
        raise DataError(f"{source.text}: no held-out text has two tokens")
    held = {read.ids[place] for place in test}
    pool = old or {name: text for name, text, out in zip(read.ids, tokens, chosen, strict=True) if not out}
    rest = {name: text for name, text in pool.items() if name not in held}
    groups = texts.read_groups(source.groups) if "group" in source.pool else {}
    return Corpus([tokens[i] for i in test], [read.ids[i] for i in test], list(rest.values()), list(rest),
                  len(set(read.texts)), old, groups)


def sample(corpus: Corpus, count: int) -> Corpus:
    """The corpus with ``count`` of the texts of other ids, chosen by hash. Previous texts are all kept."""
    chosen = texts.by_digest(corpus.rest_ids)[:count]
    return replace(corpus, rest=[corpus.rest[place] for place in chosen],
                   rest_ids=[corpus.rest_ids[place] for place in chosen])


def grouped(corpus: Corpus, max_texts: int | None = None) -> dict[str, Index]:
    """The pool of each group: up to ``max_texts`` texts of its members, in the order of the corpus."""
    members: dict[str, list[np.ndarray]] = {}
    for name, text in zip(corpus.rest_ids, corpus.rest, strict=True):
        members.setdefault(corpus.groups.get(name, ""), []).append(text)
    return {group: Index.build(texts[:max_texts], kind="collaborative")
            for group, texts in members.items() if group}


def nearest_first(corpus: Corpus, pool: Sequence[str], global_pool: Index, max_group_texts: int | None = None
                  ) -> list[tuple[Index, ...]]:
    """Pools of each replayed text, nearest first: those of ``pool`` that exist for it."""
    pools, groups = [], grouped(corpus, max_group_texts)
    for name in corpus.test_ids:
        own = [Index.build([corpus.old[name]], kind="own")] if name in corpus.old and "own" in pool else []
        group = [groups[corpus.groups[name]]] if corpus.groups.get(name) in groups else []
        sources = {"own": own, "group": group, "global": [global_pool]}
        pools.append(tuple(index for kind in POOLS if kind in pool for index in sources[kind]))
    return pools
