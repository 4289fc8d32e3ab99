"""What a step of this model costs on this device: measured at the first start, and kept."""

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from dare_job.decode.cost import Curve
from dare_job.decode.latency import fitting, trial
from dare_job.decode.request import EngineSettings
from dare_job.decode.target import Target
from dare_job.decode.verify import verifier
from dare_job.decode.verify.verdict import longest, undrafted
from dare_job.errors import DataError

_QUERIES = (1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513)
_ROUNDS = 6
_SECONDS = 4.0  # of one batch size, after which it has no further round
_VERSION = 2  # of what is kept on disk
_LOG = logging.getLogger("dare_job")


def curve(target: Target, settings: EngineSettings, folder: Path | None = None) -> Curve:
    """The curve that ``Scheduler`` needs: a forward and its verdict, up to ``settings`` rows and nodes a row.

    Measured once for a model, its type, device and versions, and a rule.
    folder  of what was measured before; None: ``dare-job/latency`` in the user's cache folder
    """
    folder = folder or _cache_folder()
    path = folder / f"{_key(target, settings)}.json"
    try:
        return Curve.of(json.loads(path.read_text(encoding="utf-8"))["latency_ms"], str(path))
    except (OSError, ValueError, KeyError, TypeError, DataError):  # not there, or damaged
        pass
    started = time.perf_counter()
    table = measure(target, settings)
    _LOG.info("measured what steps cost in %.1f s: %s", time.perf_counter() - started, path)
    _keep(path, table, target)
    return Curve.of(table, "the measured latency curve")


def measure(target: Target, settings: EngineSettings) -> dict[str, dict[str, float]]:
    """Milliseconds {batch: {queries a row: ms}} for 1, 4, 16 ... rows and those of ``settings``."""
    batches = sorted({4**i for i in range(16) if 4**i < settings.batch_size} | {settings.batch_size})
    sizes, context = fitting(target, [q for q in _QUERIES if q <= 2 * settings.nodes])
    return {str(batch): _measured(target, settings, batch, sizes, context) for batch in batches}


@torch.inference_mode()
def _measured(target: Target, settings: EngineSettings, batch: int, sizes: Sequence[int],
              context: int) -> dict[str, float]:
    """Of several rounds over all sizes the least, for others' work on the machine comes and goes.

    A step that takes as many times as long as one without drafts as it can write tokens cannot pay: nothing
    is measured behind it.
    """
    verify, found, started = _verify(target, settings), {}, time.perf_counter()
    trials = {queries: trial(target, batch, queries, context) for queries in sizes}
    for number in range(_ROUNDS):
        for queries, (cache, tree, lengths) in list(trials.items()):
            begun = time.perf_counter()
            on_device = tree.to(target.device)
            verify(target.forward(cache, on_device, lengths), tree, on_device)
            ms = 1e3 * (time.perf_counter() - begun)
            found[queries] = ms if number < 2 else min(found[queries], ms)  # the first round warms up
            if number < 2 and ms > (2 - number) * (settings.depth + 1) * found[1]:
                trials = {q: one for q, one in trials.items() if q <= queries}
                break
        if number and time.perf_counter() - started > _SECONDS:
            break
    return {str(queries): round(found[queries], 4) for queries in trials}


def _verify(target: Target, settings: EngineSettings):
    rule = verifier(settings, torch.zeros(0, dtype=torch.long, device=target.device))

    def verify(logits: torch.Tensor, tree, on_device) -> None:
        scores = logits.float()
        longest(tree, rule(scores, on_device)) if tree.depth else undrafted(scores)

    return verify


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


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache"
    return Path(base) / "dare-job" / "latency"


def _key(target: Target, settings: EngineSettings) -> str:
    """Whatever a step's time depends on, as a file name."""
    config = {k: v for k, v in target.model.config.to_dict().items() if not k.startswith("_name")}
    asked = [settings.batch_size, settings.nodes, settings.depth, settings.rule]
    what = [_VERSION, config, str(target.dtype), device_name(target.device), torch.get_num_threads(),
            torch.__version__, transformers.__version__, len(target.packing), target.in_line, asked]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:32]


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
