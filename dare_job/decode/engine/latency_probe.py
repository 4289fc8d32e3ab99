"""Measurement of step latency of a model on a device, cached on disk after the first start."""

import fcntl
import hashlib
import json
import logging
import math
import os
import platform
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers

from dare_job.decode.engine.latency import CONTEXT_TOKENS, LatencyCurve
from dare_job.decode.model import failures
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.paged.forward import argmax_tokens
from dare_job.decode.model.paged.pool import PagedCache
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify import rules, verifier
from dare_job.decode.verify.result import longest_accepted
from dare_job.errors import DataError
from pools.tree import ROOT, DraftBatch

_NODES_PER_ROW = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_CHAIN_NODES = 6  # of each row with drafts, if only some rows have drafts
_ROUNDS = 6
_MAX_SECONDS = 4.0  # per batch size: no further round begins after this
_FORMAT_VERSION = 8  # of cached measurements
_LOG = logging.getLogger("dare_job")


def load_or_measure(target: Target, settings: EngineSettings, folder: Path | None = None) -> LatencyCurve:
    """Return the latency curve for ``AdaptiveBudget``: a forward pass, verification, and commit of a chain.

    Measured once for each model, dtype, device, versions and rule.

    Parameters
    ----------
    target : Target
    settings : EngineSettings
        With the maximum number of rows and of nodes per row.
    folder : Path, optional
        Of cached measurements. None: ``dare-job/latency`` in the user's cache folder.
    """
    if target.drafts == "chain":  # a row's drafts are one path
        settings = replace(settings, nodes=min(settings.nodes, settings.depth))
    folder = folder or _cache_folder()
    path = folder / f"{_key(target, settings)}.json"
    if (cached := _read_cached(path)) is not None:
        return cached
    with _measurement_lock(path):  # parallel measurements of a machine's workers would disturb each other
        if (cached := _read_cached(path)) is not None:
            return cached
        started = time.perf_counter()
        table = measure(target, settings)
        _LOG.info("measured step latency in %.1f s: %s", time.perf_counter() - started, path)
        _write_cached(path, table, target)
    return LatencyCurve.of(table, "the measured latency curve")


def _read_cached(path: Path) -> LatencyCurve | None:
    """Return a cached curve; None if there is none, or its file is damaged."""
    try:
        return LatencyCurve.of(json.loads(path.read_text(encoding="utf-8"))["latency_ms"], str(path))
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return None


@contextmanager
def _measurement_lock(path: Path):
    """Wait until no other process of this machine measures; do not wait if no lock file can be created."""
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(path.parent / "lock", "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # released by the system when the process ends
        except OSError as error:
            _LOG.info("cannot lock the latency measurement, others may disturb it: %s", error)
        yield


def measure(target: Target, settings: EngineSettings) -> dict[str, dict[str, float]]:
    """Measure milliseconds {batch: {queries per row: ms}} for 1, 4, 16, ... and ``batch_size`` rows.

    Queries per row are a mean: rows have different numbers of nodes, as under a draft budget.
    """
    batches = sorted({4**i for i in range(16) if 4**i < settings.batch_size} | {settings.batch_size})
    # Over pages all batch sizes share a cache, and so the graphs of equal shapes.
    shared = target.new_cache(settings.batch_size) if target.paged is not None else None
    table = {str(batch): _measure_batch(target, settings, batch, shared) for batch in batches}
    return {batch: times for batch, times in table.items() if times}  # empty: out of memory


@torch.inference_mode()
def _measure_batch(target: Target, settings: EngineSettings, batch: int,
                   shared: PagedCache | None) -> dict[str, float]:
    """Return the minimum over several rounds, which other load on the machine affects least.

    With one thread on a CPU, thread time is measured, which excludes other load. A step cannot pay if its
    time relative to one without drafts exceeds the tokens that it can generate. Larger sizes than such a
    step, or than one that runs out of memory, are not measured.
    """
    columns = _max_columns(target)
    context = max(1, int(min(CONTEXT_TOKENS, columns / 2)))
    totals = sorted({0, *(max(1, int(batch * share)) for share in _NODES_PER_ROW if share <= settings.nodes)})
    depth = settings.depth if target.drafts == "tree" else 2 * settings.nodes  # of chains: as long as a row's
    trees = {nodes: _tree(batch, nodes, depth) for nodes in totals}
    trees = {nodes: tree for nodes, tree in trees.items() if context + tree.width <= columns}
    cache = target.new_cache(batch) if shared is None else shared
    step, best, started = _step(target, settings), {}, time.perf_counter()
    single = target.device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if single else time.perf_counter
    too_long: dict[int, int] = {}
    for round_index in range(-1, _ROUNDS):  # the first round warms up
        for nodes, tree in list(trees.items()):
            begun = clock()
            try:
                step(cache, tree, np.full(batch, context))
            except (RuntimeError, MemoryError) as error:
                if not failures.is_out_of_memory(error):
                    raise
                trees = {n: other for n, other in trees.items() if n < nodes}
                break
            ms = 1e3 * (clock() - begun)
            best[nodes] = ms if round_index < 1 else min(best[nodes], ms)
            too_long[nodes] = too_long.get(nodes, 0) + (ms > (settings.depth + 1) * best[0])
            if too_long[nodes] > 1:  # a single outlier does not count
                trees = {n: other for n, other in trees.items() if n <= nodes}
                break
        if round_index > 0 and time.perf_counter() - started > _MAX_SECONDS:
            break
    return {f"{1 + nodes / batch:.6g}": round(best[nodes], 4) for nodes in trees}


def _max_columns(target: Target) -> float:
    """Return the columns that a row's text and tree can take together."""
    traits = target.traits
    return min(math.inf if traits.max_length is None else traits.max_length - 1,
               math.inf if traits.max_columns is None else traits.max_columns)


def _tree(batch: int, nodes: int, depth: int) -> Tree:
    """Return trees of chains: few nodes are in few rows; many are in all rows, unevenly (1 : 3)."""
    sizes = np.clip(nodes - _CHAIN_NODES * np.arange(batch), 0, _CHAIN_NODES)
    if nodes > _CHAIN_NODES * batch:
        sizes = np.where(np.arange(batch) % 2, 0.5, 1.5) * nodes / batch if batch > 1 else np.array([nodes])
    sizes = sizes.astype(np.int32)
    shape = (batch, int(sizes.max()))
    above = np.arange(shape[1], dtype=np.int32) - 1
    above[::depth] = ROOT
    drafts = DraftBatch(np.zeros(shape, np.int32), np.tile(above, (batch, 1)), sizes, None,
                        np.zeros(shape, np.uint8))
    return build(np.zeros(batch, np.int64), drafts, np.full(batch, depth))


def _step(target: Target, settings: EngineSettings):
    """Return a function that runs a forward pass and its verification like an engine."""
    if target.paged is not None:
        return _step_over_pages(target, settings)
    verify = verifier(settings, torch.zeros(0, dtype=torch.long, device=target.device))

    def step(cache: TreeCache, tree: Tree, lengths: np.ndarray) -> None:
        on_device = tree.to(target.device)
        verify(target.forward(cache, on_device, lengths).float(), on_device)
        if target.drafts == "chain":  # keeping the state after half of the tokens takes time too
            target.commit(cache, lengths, np.zeros((len(lengths), 1), np.int64), np.diff(tree.starts) // 2)

    return step


def _step_over_pages(target: Target, settings: EngineSettings):
    rule = argmax_tokens if settings.rule == "strict" else rules.packed(settings, (), target.device)

    def step(cache: PagedCache, tree: Tree, lengths: np.ndarray) -> None:
        values = target.verified(cache, tree, lengths, rule)
        longest_accepted(tree, rules.verify_strict_argmax(tree, *values) if settings.rule == "strict"
                         else rules.unpacked(values))

    return step


def device_name(device: torch.device) -> str:
    """Return the product name of a processor or GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache"
    return Path(base) / "dare-job" / "latency"


def _key(target: Target, settings: EngineSettings) -> str:
    """Return a file name that depends on everything that affects a step's time."""
    config = {k: v for k, v in target.model.config.to_dict().items() if not k.startswith("_name")}
    limits = [settings.batch_size, settings.nodes, settings.depth, settings.rule, settings.k]
    key = [_FORMAT_VERSION, config, str(target.dtype), device_name(target.device), torch.get_num_threads(),
            torch.__version__, transformers.__version__, len(target.linear_layers or ()),
            target.llama is not None, target.packed,
            target.paged is not None, limits, *([] if target.drafts == "tree" else [target.drafts])]
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _write_cached(path: Path, table: dict, target: Target) -> None:
    """Write the curve for later processes. If that fails, they measure again."""
    about = (f"{type(target.model).__name__} in {target.dtype} on {device_name(target.device)}, "
             f"{torch.get_num_threads()} thread(s)")
    staged = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(json.dumps({"about": about, "latency_ms": table}, indent=1) + "\n", "utf-8")
        os.replace(staged, path)
    except OSError as error:
        _LOG.info("cannot cache the latency curve: %s", error)
