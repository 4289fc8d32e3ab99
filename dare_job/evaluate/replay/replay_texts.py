"""``dare-job lab replay``: replays texts of a file against pools of its other texts, and compares methods."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dare_job.config.plugins import PlugIn
from dare_job.errors import ConfigError
from dare_job.evaluate.replay import sources, specdecode
from dare_job.evaluate.replay.drafters import ARCTIC_SETTINGS, Arctic, Blend, NGram, Plugged, Published
from dare_job.evaluate.replay.measure import ROWS, Calibration, cost, ratio, replay
from dare_job.evaluate.replay.options import ReplayOptions as Options
from dare_job.evaluate.replay.sources import Corpus
from dare_job.evaluate.replay.verified import Recorded
from pools.draft import DraftSettings, warm_up
from pools.index import Index

PEERS = ("published", "arctic", "n-gram")
_SETTINGS = DraftSettings()
_HELD_OUT = 1000


def run(options: Options) -> dict:
    """Replay texts; returns the JSON object that the command prints last, with --specdecode by set.

    Raises
    ------
    ConfigError
        An option is invalid, or the package of a peer is not installed.
    DataError
        A file is invalid.
    """
    _check(options)
    if options.specdecode is None:
        corpus = sources.load(replace(options, held_out=options.held_out or _HELD_OUT), options.prompt_column)
        warm_up()
        return _replay(corpus, options)
    sets = specdecode.load(options.specdecode, options.held_out or specdecode.HELD_OUT)
    warm_up()
    return {name: _replay_set(name, corpus, recorded, options) for name, (corpus, recorded) in sets.items()}


def _replay_set(name: str, corpus: Corpus, recorded: dict[str, dict], options: Options) -> dict:
    """Figures of a set of SpecDecode-Bench by draft tokens, and those of the recorded drafters."""
    print(f"{name}:", flush=True)
    found = _replay(corpus, options)
    for drafter, figures in recorded.items():
        low, high = figures["ci95"]
        print(f"{drafter:10} {figures['draft_tokens']:4} draft tokens: {figures['tokens_per_step']:.3f} "
              f"tokens per step ({low:.3f} to {high:.3f}), as recorded", flush=True)
    return {**found.pop("nodes"), **recorded, **found}


def _replay(corpus: Corpus, options: Options) -> dict:
    index, index_figures = _index(corpus.rest)
    pools = sources.nearest_first(corpus, options.pool, index)
    by_nodes, per_text = {}, {}
    for nodes in options.nodes:
        calibration = Calibration()
        figures = replay(corpus.test, Blend(pools, _SETTINGS), nodes, calibration, corpus.prompts)
        per_text[nodes] = figures.pop("per_text")
        by_nodes[str(nodes)] = figures | {
            "batch_us_per_row": cost(corpus.test, pools, _SETTINGS, nodes, corpus.prompts),
            "calibration": calibration.deciles()}
        _print("blend", nodes, by_nodes[str(nodes)])
    against = {name: _peer(name, corpus, index, options, per_text) for name in options.against}
    drafters = {text: {"nodes": _drafter(text, text, corpus, pools, options, per_text)}
                for text in options.drafter}
    verifiers = {text: _verifier(text, corpus, pools, options, per_text) for text in options.verifier}
    sizes = {}
    for count in options.pool_texts:
        sizes[str(count)], by_drafter = _with_pool_of(count, corpus, options)
        for text, figures in by_drafter.items():
            drafters[text].setdefault("pool_texts", {})[str(count)] = figures
    return {"texts": len(corpus.rest), "held_out": len(corpus.test), "tokens": index.token_count,
            "distinct_texts": corpus.distinct, "pool": list(options.pool), "nodes": by_nodes, **index_figures,
            "pool_texts": sizes, "against": against, "drafters": drafters, "verifiers": verifiers}


def _with_pool_of(count: int, corpus: Corpus, options: Options) -> tuple[dict, dict[str, dict]]:
    """Figures by nodes with ``count`` texts of other ids in the pool, and those of each user's drafter."""
    part, by_nodes, per_text = sources.sample(corpus, count), {}, {}
    pools = sources.nearest_first(part, options.pool, Index.build(part.rest))
    for nodes in options.nodes:
        figures = replay(part.test, Blend(pools, _SETTINGS), nodes, prompts=part.prompts)
        per_text[nodes] = figures.pop("per_text")
        by_nodes[str(nodes)] = figures
        _print(f"{count} texts", nodes, figures)
    return by_nodes, {text: _drafter(text, f"{count} texts, {text}", part, pools, options, per_text)
                      for text in options.drafter}


def _drafter(text: str, label: str, corpus: Corpus, pools: Sequence[tuple[Index, ...]], options: Options,
             per_text: dict[int, np.ndarray]) -> dict:
    """A user's drafter by nodes, with our ratio to it in pairs."""
    previous = [corpus.old.get(name) if "own" in options.pool else None for name in corpus.test_ids]
    by_nodes = {}
    for nodes in options.nodes:
        drafter = Plugged(_plug_in("drafter", text), pools, previous, _SETTINGS.depth)
        figures = replay(corpus.test, drafter, nodes, prompts=corpus.prompts)
        by_nodes[str(nodes)] = figures | ratio(per_text[nodes], figures.pop("per_text"))
        _print(label, nodes, by_nodes[str(nodes)])
    return by_nodes


def _verifier(text: str, corpus: Corpus, pools: Sequence[tuple[Index, ...]], options: Options,
              per_text: dict[int, np.ndarray]) -> dict:
    """Our drafts by nodes with a user's verifier, and the ratio of strict verification to it in pairs."""
    vocabulary = 1 + max(int(part.max(initial=0)) for part in (*corpus.test, *corpus.prompts))
    by_nodes = {}
    for nodes in options.nodes:
        verifier = Recorded(_plug_in("verifier", text), vocabulary)
        figures = replay(corpus.test, Blend(pools, _SETTINGS), nodes, prompts=corpus.prompts,
                         verifier=verifier)
        by_nodes[str(nodes)] = figures | ratio(per_text[nodes], figures.pop("per_text"))
        _print(text, nodes, by_nodes[str(nodes)], "strict verification")
    return {"nodes": by_nodes}


def _plug_in(kind: str, text: str) -> PlugIn:
    return PlugIn.parse(kind, f"--{kind}", text)


def _check(options: Options) -> None:
    for kind in ("drafter", "verifier"):
        for text in getattr(options, kind):
            _plug_in(kind, text).load()
    if options.specdecode and set(options.pool) != {"global"}:
        raise ConfigError("--specdecode replays with --pool global alone")
    sources.check(options)
    for value in options.against:
        if value not in PEERS:
            raise ConfigError(f"--against {value!r} is unknown; choose from {', '.join(PEERS)}")
    if any(count < 0 for count in options.pool_texts):
        raise ConfigError(f"--pool-texts {','.join(map(str, options.pool_texts))}: each must be at least 0")
    if not options.nodes or min(options.nodes) < 1 or max(options.nodes) > 512:
        raise ConfigError(f"--nodes {','.join(map(str, options.nodes))}: each must be from 1 to 512")


def _index(texts: Sequence[np.ndarray]) -> tuple[Index, dict]:
    """Build the global pool; return it, its build speed, its size, and how long opening it takes."""
    Index.build(texts[:64])  # compiled, or loaded from the cache
    started = time.perf_counter()
    index = Index.build(texts)
    build_s = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "pool")
        size = sum(file.stat().st_size for file in (Path(folder) / "pool").iterdir())
        open_ms = {}
        for verify in (True, False):
            started = time.perf_counter()
            Index.open(Path(folder) / "pool", verify=verify)
            open_ms[verify] = round((time.perf_counter() - started) * 1e3, 2)
    print(f"{index.texts} texts of {index.token_count} tokens indexed in {build_s:.2f} s", flush=True)
    return index, {"build_tokens_per_s": round(index.token_count / build_s),
                   "bytes_per_token": round(size / max(1, index.token_count), 2),
                   "open_ms": open_ms[False], "open_and_verify_ms": open_ms[True]}


def _peer(name: str, corpus: Corpus, index: Index, options: Options, per_text: dict[int, np.ndarray]) -> dict:
    """A peer's figures by nodes, at its best setting for each, with our ratio to it in pairs."""
    by_nodes = {}
    arctic = Arctic(corpus.rest) if name == "arctic" else None
    for nodes in options.nodes:
        if arctic is None:
            peer = NGram() if name == "n-gram" else Published(index, nodes, _SETTINGS.depth)
            figures = replay(corpus.test, peer, nodes, prompts=corpus.prompts)
        else:
            figures = max((_arctic(arctic, corpus, nodes, *setting) for setting in ARCTIC_SETTINGS),
                          key=lambda figures: figures["accepted_per_step"])
        theirs = figures.pop("per_text")
        by_nodes[str(nodes)] = figures | ratio(per_text[nodes], theirs)
        _print(name, nodes, by_nodes[str(nodes)])
    return {"nodes": by_nodes}


def _arctic(drafter: Arctic, corpus: Corpus, nodes: int, factor: float, min_probability: float) -> dict:
    drafter.factor, drafter.min_probability = factor, min_probability
    setting = {"max_spec_factor": factor, "min_token_prob": min_probability}
    return replay(corpus.test, drafter, nodes, prompts=corpus.prompts) | {"setting": setting}


def _print(name: str, nodes: int, figures: dict, other: str = "the blend") -> None:
    low, high = figures["ci95"]
    line = (f"{name:10} {nodes:4} draft tokens: {figures['accepted_per_step']:.3f} accepted per step "
            f"({low:.3f} to {high:.3f}), {figures['tokens_per_step']:.3f} tokens per step, "
            f"{figures['p50_us']} us median, {figures['p99_us']} us p99")
    if "ratio" in figures:
        line += f"; {other} has {figures['ratio']:.3f} times as much"
    print(line, flush=True)
    if "calibration" in figures:
        print("  predicted > observed by decile: " + ", ".join(
            f"{part['predicted']:.3f} > {part['observed']:.3f}" for part in figures["calibration"]))
        print(f"  one call for {ROWS} rows: " + ", ".join(
            f"{us} us per row on {threads} thread(s)"
            for threads, us in figures["batch_us_per_row"].items()), flush=True)
