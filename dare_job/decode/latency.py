"""How long a forward of this model takes on this device, against rows and queries a row."""

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

from dare_job.decode.cost import Curve
from dare_job.decode.target import Target
from dare_job.decode.tree import build
from dare_job.errors import DataError
from pools.tree import ROOT, DraftBatch

CONTEXT = 128  # tokens before the root, where the model takes as many
_QUERIES = (1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513)
_SECONDS = 10.0  # after which no further point is begun
_VERSION = 1  # of what is kept on disk
_LOG = logging.getLogger("dare_job")


def latency_ms(target: Target, batches: Sequence[int], queries: Sequence[int],
               repeats: int = 5) -> dict[str, dict[str, float]]:
    """Median milliseconds of a forward: {batch: {queries a row: ms}}, keys as text for JSON.

    All with the same number of tokens before the root, so that they can be compared. Sizes of ``queries``
    that the model's context does not hold with one token before are left out.
    """
    fitting, context = _fitting(target, queries)
    return {str(b): {str(q): round(float(np.median(_times(target, b, q, context, repeats))), 3)
                     for q in fitting} for b in batches}


def curve(target: Target, batch_size: int, nodes: int, longest: int, folder: Path | None = None) -> Curve:
    """The curve that ``Scheduler`` needs, measured once for a model, its type, device and versions.

    batch_size, nodes  rows and draft nodes a row, at most
    longest            tokens that a row's step can write: a forward that takes as many times as long as one
                       without drafts cannot pay, so nothing is measured behind it
    folder             of what was measured before; None: ``dare-job/latency`` in the user's cache folder
    """
    folder = folder or _cache_folder()
    path = folder / f"{_key(target, batch_size, nodes, longest)}.json"
    try:
        return Curve.of(json.loads(path.read_text(encoding="utf-8"))["latency_ms"], str(path))
    except (OSError, ValueError, KeyError, TypeError, DataError):  # not there, or damaged
        pass
    started = time.perf_counter()
    table = _measure(target, batch_size, nodes, longest)
    _LOG.info("measured what forwards cost in %.1f s: %s", time.perf_counter() - started, path)
    _keep(path, table, target)
    return Curve.of(table, "the measured latency curve")


def _measure(target: Target, batch_size: int, nodes: int, longest: int) -> dict[str, dict[str, float]]:
    """Least milliseconds of a few repeats: {batch: {queries a row: ms}}; others' work only adds to them."""
    fitting, context = _fitting(target, [q for q in _QUERIES if q <= 2 * nodes])
    batches = sorted({4**i for i in range(16) if 4**i < batch_size} | {batch_size})
    started, table = time.perf_counter(), {}
    for batch in batches:
        row = table[str(batch)] = {}
        for queries in fitting:
            row[str(queries)] = round(min(_times(target, batch, queries, context, 3)), 4)
            if row[str(queries)] > longest * row["1"] or (
                    len(row) > 2 and time.perf_counter() - started > _SECONDS):
                break
    return table


def _fitting(target: Target, queries: Sequence[int]) -> tuple[list[int], int]:
    """Of ``queries`` those that the model has positions for, and the context to measure them in."""
    limit = target.traits.context or CONTEXT + max(queries)
    fitting = [q for q in queries if q < limit]
    return fitting, min(CONTEXT, limit - max(fitting, default=0))


def _times(target: Target, batch: int, queries: int, context: int, repeats: int) -> list[float]:
    """Milliseconds of as many forwards, two more left out."""
    nodes, lengths = queries - 1, np.full(batch, context)
    chain = np.tile(np.arange(ROOT, nodes - 1, dtype=np.int32), (batch, 1))
    zeros = np.zeros((batch, nodes), np.int32)
    drafts = DraftBatch(zeros, chain, np.full(batch, nodes, np.int32), zeros.astype(np.float32),
                        zeros.astype(np.uint8))
    tree = build(np.zeros(batch, np.int64), drafts, np.full(batch, queries)).to(target.device)
    cache = target.new_cache(batch)
    cache.reserve(context + queries)  # what stands there costs the same
    times = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        target.forward(cache, tree, lengths)[0, 0].item()  # waits for the device
        times.append(1e3 * (time.perf_counter() - started))
    return times[2:]


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache"
    return Path(base) / "dare-job" / "latency"


def _key(target: Target, *sizes: int) -> str:
    """Whatever a forward's time depends on, as a file name."""
    config = {k: v for k, v in target.model.config.to_dict().items() if not k.startswith("_name")}
    what = [_VERSION, config, str(target.dtype), device_name(target.device), torch.get_num_threads(),
            torch.__version__, transformers.__version__, len(target.packing), target.in_line, sizes]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:32]


def device_name(device: torch.device) -> str:
    """What the maker calls this processor or GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _keep(path: Path, table: dict, target: Target) -> None:
    """Write the curve for later processes; without a place to write to it is measured again."""
    about = (f"{type(target.model).__name__} in {target.dtype} on {device_name(target.device)}, "
             f"{torch.get_num_threads()} thread(s)")
    staged = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(json.dumps({"about": about, "latency_ms": table}, indent=1) + "\n", "utf-8")
        os.replace(staged, path)
    except OSError as error:
        _LOG.info("the latency curve is not kept: %s", error)
