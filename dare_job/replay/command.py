"""The command ``replay``: one file's texts against pools of the others, and against peers in the same run."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dare_job.errors import ConfigError, DataError
from dare_job.replay import texts
from dare_job.replay.drafters import ARCTIC_SETTINGS, Arctic, Blend, Published
from dare_job.replay.measure import ratio, replay
from pools.draft import DraftSettings, warm_up
from pools.index import Index

POOLS = ("own", "group", "global")
PEERS = ("published", "arctic")


@dataclass(frozen=True)
class Options:
    """What ``dare-job replay`` was asked; the field's names are those of its options."""

    text: Path
    column: str
    tokenizer: Sequence[Path]
    id_column: str | None = None
    held_out: int = 1000
    nodes: Sequence[int] = (16, 64)
    pool: Sequence[str] = ("global",)
    groups: Path | None = None
    old: Path | None = None
    against: Sequence[str] = ()
    settings: DraftSettings = field(default_factory=DraftSettings)


@dataclass(frozen=True)
class Corpus:
    """Replayed texts with their ids, and those that the pools are made of."""

    test: list[np.ndarray]
    test_ids: list[str]
    rest: list[np.ndarray]
    rest_ids: list[str]
    distinct: int


def run(options: Options) -> dict:
    """Replay one file; returns the JSON object that the command prints last.

    Raises ConfigError for impossible options, DataError for files that do not serve.
    """
    _check(options)
    encode = texts.load_tokenizer(options.tokenizer)
    old = _column(options.old, options, encode) if options.old else {}
    corpus = _corpus(options, encode, old)
    warm_up()
    index, figures = _index(corpus.rest)
    pools = _pools(options, corpus, index, old)
    result = {"texts": len(corpus.rest), "held_out": len(corpus.test), "tokens": index.token_count,
              "distinct_texts": corpus.distinct, "pool": list(options.pool), "nodes": {}}
    ours = {}
    for nodes in options.nodes:
        found = replay(corpus.test, Blend(pools, options.settings), nodes)
        ours[nodes] = found.pop("per_text")
        result["nodes"][str(nodes)] = found
        _say("blend", nodes, found)
    against = {name: _peer(name, corpus, index, options, ours) for name in options.against}
    return {**result, **figures, "against": against}


def _check(options: Options) -> None:
    for name, given, known in (("--pool", options.pool, POOLS), ("--against", options.against, PEERS)):
        for value in given:
            if value not in known:
                raise ConfigError(f"{name} {value!r} is unknown; choose from {', '.join(known)}")
    if not options.pool:
        raise ConfigError(f"--pool names no pool; choose from {', '.join(POOLS)}")
    if "group" in options.pool and options.groups is None:
        raise ConfigError("--pool group needs --groups FILE, a table of entity_id and group")
    if "own" in options.pool and options.old is None:
        raise ConfigError("--pool own needs --old FILE: the same ids' texts of an earlier date, in the same "
                          "columns")
    if not options.nodes or min(options.nodes) < 1 or max(options.nodes) > 512:
        raise ConfigError(f"--nodes {','.join(map(str, options.nodes))}: each must be from 1 to 512")


def _column(path: Path, options: Options, encode) -> dict[str, np.ndarray]:
    """Token ids by id."""
    read = texts.read(path, options.column, options.id_column)
    return dict(zip(read.ids, encode(read.texts), strict=True))


def _corpus(options: Options, encode, old: dict[str, np.ndarray]) -> Corpus:
    """Held-out texts, and the pool's: the other ids' texts of this file, or with ``--old`` of that one."""
    read = texts.read(options.text, options.column, options.id_column)
    if not 0 < options.held_out < len(read.ids):
        raise ConfigError(f"--held-out {options.held_out} must be above 0 and below {len(read.ids)}, the "
                          f"texts of {options.text}")
    if len(set(read.ids)) < len(read.ids):
        raise DataError(f"{options.text}: column {options.id_column} holds an id twice")
    tokens = encode(read.texts)
    chosen = texts.held_out(read.ids, options.held_out)
    test = [place for place in np.flatnonzero(chosen) if tokens[place].size > 1]
    if not test:
        raise DataError(f"{options.text}: no held-out text has two tokens")
    held = {read.ids[place] for place in test}
    pool = old or {name: text for name, text, out in zip(read.ids, tokens, chosen, strict=True) if not out}
    rest = {name: text for name, text in pool.items() if name not in held}
    return Corpus([tokens[i] for i in test], [read.ids[i] for i in test], list(rest.values()), list(rest),
                  len(set(read.texts)))


def _index(rest: Sequence[np.ndarray]) -> tuple[Index, dict]:
    """The pool of everybody as a run would open it, and what building, keeping and opening it costs."""
    Index.build(rest[:1])  # compiled
    begun = time.perf_counter()
    index = Index.build(rest)
    build_s = time.perf_counter() - begun
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "pool")
        size = sum(file.stat().st_size for file in (Path(folder) / "pool").iterdir())
        opened = {}
        for verify in (True, False):
            begun = time.perf_counter()
            Index.open(Path(folder) / "pool", verify=verify)
            opened[verify] = round((time.perf_counter() - begun) * 1e3, 2)
    print(f"{index.texts} texts of {index.token_count} tokens indexed in {build_s:.2f} s", flush=True)
    return index, {"build_tokens_per_s": round(index.token_count / build_s),
                   "bytes_per_token": round(size / max(1, index.token_count), 2),
                   "open_ms": opened[False], "open_and_verify_ms": opened[True]}


def _pools(options: Options, corpus: Corpus, index: Index, old: dict[str, np.ndarray]) -> list[tuple]:
    """Pools of each replayed text, nearest first."""
    groups = texts.read_groups(options.groups) if "group" in options.pool else {}
    members: dict[str, list[np.ndarray]] = {}
    for name, text in zip(corpus.rest_ids, corpus.rest, strict=True):
        members.setdefault(groups.get(name, ""), []).append(text)
    grouped = {group: Index.build(some, kind="collaborative") for group, some in members.items() if group}
    found = []
    for name in corpus.test_ids:
        own = [Index.build([old[name]], kind="own")] if name in old else []
        near = {"own": own, "group": [grouped[groups[name]]] if groups.get(name) in grouped else [],
                "global": [index]}
        found.append(tuple(pool for kind in POOLS if kind in options.pool for pool in near[kind]))
    return found


def _peer(name: str, corpus: Corpus, index: Index, options: Options, ours: dict[int, np.ndarray]) -> dict:
    """A peer's figures by nodes, at its best setting for each, with our ratio to it in pairs."""
    result: dict = {"nodes": {}}
    arctic = Arctic(corpus.rest) if name == "arctic" else None
    for nodes in options.nodes:
        if arctic is None:
            found = replay(corpus.test, Published(index, nodes, options.settings.depth), nodes)
        else:
            found = max((_arctic(arctic, corpus, nodes, *setting) for setting in ARCTIC_SETTINGS),
                        key=lambda figures: figures["accepted_per_step"])
        theirs = found.pop("per_text")
        result["nodes"][str(nodes)] = found | ratio(ours[nodes], theirs)
        _say(name, nodes, result["nodes"][str(nodes)])
    return result


def _arctic(drafter: Arctic, corpus: Corpus, nodes: int, factor: float, least: float) -> dict:
    drafter.factor, drafter.least = factor, least
    return replay(corpus.test, drafter, nodes) | {"setting": {"max_spec_factor": factor,
                                                              "min_token_prob": least}}


def _say(name: str, nodes: int, found: dict) -> None:
    low, high = found["ci95"]
    line = (f"{name:10} {nodes:4} nodes: {found['accepted_per_step']:.3f} accepted a step ({low:.3f} to "
            f"{high:.3f}), {found['p50_us']} us median, {found['p99_us']} us p99")
    if "ratio" in found:
        line += f"; the blend has {found['ratio']:.3f} times as much"
    print(line, flush=True)
