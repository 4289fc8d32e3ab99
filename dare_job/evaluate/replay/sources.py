"""Replayed texts and the pools that draft for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from dare_job.data import recorded_texts as texts
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.replay.options import Source
from pools.index import Index

POOLS = ("own", "group", "global")
_NO_PROMPT = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Recorded:
    """Ids, texts and prompts of recorded texts; both int32 (tokens,), a prompt may be empty."""

    ids: list[str]
    tokens: list[np.ndarray]
    prompts: list[np.ndarray]

    def by_id(self) -> dict[str, np.ndarray]:
        return dict(zip(self.ids, self.tokens, strict=True))


@dataclass(frozen=True)
class Corpus:
    """Replayed texts with their ids, and the texts of the pools.

    Attributes
    ----------
    test
        Replayed texts, int32 (tokens,).
    prompts
        Prompt of each replayed text, int32 (tokens,), which may be empty.
    rest
        Texts of the pools.
    distinct
        Number of different texts.
    old
        Previous texts by id.
    groups
        Group by id.
    """

    test: list[np.ndarray]
    prompts: list[np.ndarray]
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


def load(source: Source, prompt_column: str | None = None) -> Corpus:
    """Held-out texts, and the texts of the pools: those of other ids in the file, or in ``--old`` if given.

    Raises
    ------
    ConfigError
        There is no file, or it has too few texts.
    DataError
        A file cannot be read, an id is duplicated, or no held-out text has two tokens.
    """
    if not source.text:
        raise ConfigError("--text FILE is missing: a jsonl, csv or Parquet file of recorded texts")
    old = _read([source.old], source).by_id() if source.old else {}
    groups = texts.read_groups(source.groups) if "group" in source.pool else {}
    read = _read(source.text, source, prompt_column)
    return split(read, source.held_out, ", ".join(map(str, source.text)), old, groups)


def split(read: Recorded, count: int, name: str, old: Mapping[str, np.ndarray] = MappingProxyType({}),
          groups: Mapping[str, str] = MappingProxyType({})) -> Corpus:
    """Hold out ``count`` texts, chosen by the hash of their ids; the others, or ``old``, are the pool.

    Parameters
    ----------
    name
        File of the texts, for messages.

    Raises
    ------
    ConfigError
        The file has too few texts.
    DataError
        An id is duplicated, or no held-out text has two tokens.
    """
    if not 0 < count < len(read.ids):
        raise ConfigError(f"--held-out {count} must be above 0 and below {len(read.ids)}, the texts of "
                          f"{name}")
    if len(set(read.ids)) < len(read.ids):
        raise DataError(f"{name}: the column of ids has duplicates")
    chosen = texts.held_out(read.ids, count)
    test = [place for place in np.flatnonzero(chosen) if read.tokens[place].size > 1]
    if not test:
        raise DataError(f"{name}: no held-out text has two tokens")
    held = {read.ids[place] for place in test}
    pool = old or {read.ids[place]: read.tokens[place] for place in np.flatnonzero(~chosen)}
    rest = {name: text for name, text in pool.items() if name not in held}
    distinct = len({text.tobytes() for text in read.tokens})
    return Corpus(*([column[i] for i in test] for column in (read.tokens, read.prompts, read.ids)),
                  list(rest.values()), list(rest), distinct, dict(old), dict(groups))


def _read(files: Sequence[Path], source: Source, prompt_column: str | None = None) -> Recorded:
    """Ids, token ids and prompts of all files together."""
    ids, tokens, prompts = [], [], []
    for file in files:
        read = texts.read(file, source.column, source.id_column, prompt_column)
        ids += read.ids if source.id_column or len(files) == 1 else [f"{file}:{row}" for row in read.ids]
        tokens += texts.token_ids(read.texts, source.tokenizer, f"{file}: column {source.column}")
        prompts += (texts.token_ids(read.prompts, source.tokenizer, f"{file}: column {prompt_column}")
                    if read.prompts is not None else [_NO_PROMPT] * len(read.ids))
    return Recorded(ids, tokens, prompts)


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
