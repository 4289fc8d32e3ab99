"""The command ``replay``: one file's texts against pools of the others, and against peers in the same run."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dare_job.errors import ConfigError
from dare_job.evaluate.replay import sources
from dare_job.evaluate.replay.drafters import ARCTIC_SETTINGS, Arctic, Blend, Published
from dare_job.evaluate.replay.measure import ROWS, Calibration, cost, ratio, replay
from dare_job.evaluate.replay.options import ReplayOptions as Options
from dare_job.evaluate.replay.sources import Corpus
from pools.draft import DraftSettings, warm_up
from pools.index import Index

PEERS = ("published", "arctic")
_SETTINGS = DraftSettings()


def run(options: Options) -> dict:
    """Replay one file; returns the JSON object that the command prints last.

    Raises ConfigError for impossible options, DataError for files that do not serve.
    """
    _check(options)
    corpus = sources.load(options)
    warm_up()
    index, figures = _index(corpus.rest)
    pools = sources.nearest_first(corpus, options.pool, index)
    result = {"texts": len(corpus.rest), "held_out": len(corpus.test), "tokens": index.token_count,
              "distinct_texts": corpus.distinct, "pool": list(options.pool), "nodes": {}}
    ours = {}
    for nodes in options.nodes:
        calibration = Calibration()
        found = replay(corpus.test, Blend(pools, _SETTINGS), nodes, calibration)
        ours[nodes] = found.pop("per_text")
        found |= {"batch_us_per_row": cost(corpus.test, pools, _SETTINGS, nodes),
                  "calibration": calibration.deciles()}
        result["nodes"][str(nodes)] = found
        _say("blend", nodes, found)
        _say_more(found)
    against = {name: _peer(name, corpus, index, options, ours) for name in options.against}
    return {**result, **figures, "against": against}


def _check(options: Options) -> None:
    sources.check(options)
    for value in options.against:
        if value not in PEERS:
            raise ConfigError(f"--against {value!r} is unknown; choose from {', '.join(PEERS)}")
    if not options.nodes or min(options.nodes) < 1 or max(options.nodes) > 512:
        raise ConfigError(f"--nodes {','.join(map(str, options.nodes))}: each must be from 1 to 512")


def _index(rest: Sequence[np.ndarray]) -> tuple[Index, dict]:
    """The pool of everybody, and what building, keeping and opening it costs, with and without checksums."""
    Index.build(rest[:64])  # compiled, or loaded from the cache
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


def _peer(name: str, corpus: Corpus, index: Index, options: Options, ours: dict[int, np.ndarray]) -> dict:
    """A peer's figures by nodes, at its best setting for each, with our ratio to it in pairs."""
    result: dict = {"nodes": {}}
    arctic = Arctic(corpus.rest) if name == "arctic" else None
    for nodes in options.nodes:
        if arctic is None:
            found = replay(corpus.test, Published(index, nodes, _SETTINGS.depth), nodes)
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


def _say_more(found: dict) -> None:
    print("  predicted > observed by decile: " + ", ".join(
        f"{part['predicted']:.3f} > {part['observed']:.3f}" for part in found["calibration"]))
    print(f"  one call for {ROWS} rows: " + ", ".join(
        f"{us} us a row on {threads} thread(s)" for threads, us in found["batch_us_per_row"].items()),
          flush=True)


def _say(name: str, nodes: int, found: dict) -> None:
    low, high = found["ci95"]
    line = (f"{name:10} {nodes:4} nodes: {found['accepted_per_step']:.3f} accepted a step ({low:.3f} to "
            f"{high:.3f}), {found['p50_us']} us median, {found['p99_us']} us p99")
    if "ratio" in found:
        line += f"; the blend has {found['ratio']:.3f} times as much"
    print(line, flush=True)
