"""``bench time-shares``: the parts that decoding spends its time on, and the least time that they can take.

The least time of a layer is that of the slower of two things, as measured in the same run: reading its
weights, or keys and values, from memory once, and multiplying (Williams, Waterman and Patterson 2009).
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from dare_job.bench.cli import command, ints
from dare_job.bench.gpu import machine
from dare_job.bench.kept import work_folder
from dare_job.bench.measured import print_table
from dare_job.bench.peers import task
from dare_job.cli import options as night_options
from dare_job.config.options import option, words
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine import engine, latency_probe
from dare_job.decode.engine.draft_budget import DraftBudget, max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model import llama_forward, tree_attention
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError
from pools.draft import DraftSettings, warm_up
from pools.index import Index

PARTS = ("prompts", "drafting", "linear", "attention", "norms", "logits", "other_forward", "verification",
         "other")
METHODS = ("plain", "dare strict")
_READ_BYTES, _PRODUCT = 1 << 29, (512, 1536, 1536)  # more than caches hold; tokens, in and out features
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options(night_options.Night):
    """Options of ``bench time-shares``, as those of ``bench peers``."""

    batch: tuple[int, ...] = option("Batch sizes.", (1, 8, 32), parse=ints)
    rows: tuple[int, ...] = option("Users, one number for each batch size.", (8, 32, 64), parse=ints)
    pool: int = option("Texts of the date before that are drafts, at most.", 2000)
    threads: int = option("torch threads.", 1)
    dtypes: tuple[str, ...] = option("Types of the weights.", ("float32",),
                                     parse=lambda flag, text: tuple(words(flag, text)))
    work: Path | None = option("Folder that keeps latency curves. Default: a temporary folder.", None)

    def __post_init__(self):
        if len(self.rows) != len(self.batch) or not self.batch:
            raise ConfigError(f"--rows must have a number for each of the {len(self.batch)} batch sizes")


class Clock:
    """Adds up the seconds of parts that call one another; a part's time excludes that of the parts it calls.

    What prompts call counts as prompts.

    Attributes
    ----------
    seconds, least
        By part, the time that it took and the least that it can take.
    """

    def __init__(self, peaks: "Peaks"):
        self.seconds, self.least = Counter(), Counter()
        self._peaks, self._open, self._since = peaks, ["other"], time.perf_counter()

    def timed(self, part: str, function: Callable) -> Callable:
        """The function, whose calls count as the part."""
        def call(*args, **kwargs):
            self._switch()
            self._open.append(self._open[-1] if self._open[-1] == "prompts" else part)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._open.pop()

        return call

    def work(self, moved: int, products: int) -> None:
        """Note bytes that the open part reads, and floating-point operations that it does."""
        self.least[self._open[-1]] += max(moved / self._peaks.bytes_per_s, products / self._peaks.flops)

    def stop(self) -> None:
        """Count the time up to now."""
        self._switch()

    def _switch(self) -> None:
        now = time.perf_counter()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now


@dataclass(frozen=True)
class Peaks:
    """Bytes per second that this machine reads, and operations per second of a matrix product."""

    bytes_per_s: float
    flops: float

    @classmethod
    def measure(cls, dtype: torch.dtype) -> "Peaks":
        """Measure both with torch's current number of threads: the best of five."""
        matrix = torch.ones(_READ_BYTES // dtype.itemsize // 4096, 4096, dtype=dtype)
        vector = torch.ones(4096, dtype=dtype)
        tokens, inner, outer = _PRODUCT
        values = torch.ones(tokens, inner, dtype=dtype)
        layer = torch.nn.Linear(inner, outer, False, dtype=dtype)
        with torch.inference_mode():
            linear = llama_forward._Linear(False, layer)
            return cls(matrix.nbytes / _best(lambda: torch.mv(matrix, vector)),
                       2 * tokens * inner * outer / _best(lambda: linear(values)))


def _best(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(6):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


@contextmanager
def _timers(target: Target, decoder: Engine, clock: Clock) -> Iterator[None]:
    """Time the parts of this engine while it runs."""
    run_linear, run_attention = llama_forward._Linear.__call__, tree_attention.tree_sdpa
    as_linear, as_logits = clock.timed("linear", run_linear), clock.timed("logits", run_linear)

    def linear(layer, values, *args, **kwargs):
        is_head = target.llama is not None and layer is target.llama._head
        size = layer._weight.numel()
        note = clock.timed("logits" if is_head else "linear", clock.work)
        note(size * values.element_size(), 2 * len(values) * size)
        return (as_logits if is_head else as_linear)(layer, values, *args, **kwargs)

    def attention(module, query, keys, values, *args, **kwargs):
        clock.timed("attention", clock.work)(
            keys.nbytes + values.nbytes, 4 * query.numel() * keys.shape[-2])
        return as_attention(module, query, keys, values, *args, **kwargs)

    as_attention = clock.timed("attention", run_attention)
    patched = [
        (decoder, "_verify_prefill", clock.timed("prompts", decoder._verify_prefill)),
        (decoder, "_draft", clock.timed("drafting", decoder._draft)),
        (engine, "build", clock.timed("drafting", engine.build)),
        (decoder, "_verify_logits", clock.timed("verification", decoder._verify_logits)),
        (target, "_forward", clock.timed("other_forward", target._forward)),
        (llama_forward._Linear, "__call__", linear),
        (llama_forward._Norm, "__call__", _method(clock.timed("norms", llama_forward._Norm.__call__))),
        (llama_forward, "_rotate", clock.timed("norms", llama_forward._rotate)),
        (tree_attention, "tree_sdpa", attention),
        (TreeCache, "update", _method(clock.timed("attention", TreeCache.update)))]
    with ExitStack() as stack:
        for owner, name, replacement in patched:
            stack.enter_context(patch.object(owner, name, replacement))
        yield


def _method(function: Callable) -> Callable:
    """A function that a class can have as a method."""
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


def measure(target: Target, requests: list[Request], method: str, batch: int, limit: int, peaks: Peaks,
            curves: Path, penalty: float | None) -> dict:
    """One line of the table: tokens per second, and seconds and least seconds by part."""
    plain = method == "plain"
    settings = EngineSettings(max_new_tokens=limit, batch_size=batch, repetition_penalty=penalty,
                              nodes=0 if plain else max_row_nodes(batch),
                              score="never" if plain else "auto")
    budget = drafter = None
    if not plain:
        budget = DraftBudget(latency_probe.load_or_measure(target, settings, curves), settings.nodes)
        drafter = RetrievalDrafter(DraftSettings(threads=torch.get_num_threads()))
    decoder = Engine(target, settings, drafter, draft_budget=budget)
    list(decoder.run(requests[:2]))  # compiles, and allocates
    clock = Clock(peaks)
    with _timers(target, decoder, clock):
        began = time.perf_counter()
        results = list(decoder.run(requests))
        seconds = time.perf_counter() - began
        clock.stop()
    tokens, steps = (sum(values) for values in zip(*(
        (len(result.token_ids), result.target_steps) for result in results), strict=True))
    return {"method": method, "batch": batch, "rows": len(requests), "tokens": tokens,
            "tokens_per_s": round(tokens / seconds, 2), "tokens_per_step": round(tokens / max(1, steps), 2),
            "seconds": {part: round(clock.seconds[part], 4) for part in PARTS},
            "least": {part: round(clock.least[part], 4) for part in PARTS if clock.least[part]}}


def _requests(rows: task.Rows) -> list[Request]:
    pool = Index.build([*rows.pool, *rows.previous.values()])
    own = {name: (Index.build([text], kind="own"),) for name, text in rows.previous.items()}
    return [Request(name, prompt, (*own.get(name, ()), pool), previous_ids=rows.previous.get(name))
            for name, prompt in rows.prompts.items()]


def _shares(line: dict) -> dict:
    """A line of the printed table: shares of the time, and of the least time in all."""
    whole = sum(line["seconds"].values())
    return ({name: line[name] for name in ("dtype", "method", "batch", "tokens_per_s", "tokens_per_step")}
            | {part: f"{seconds / whole:.0%}" for part, seconds in line["seconds"].items()}
            | {"least": f"{sum(line['least'].values()) / whole:.0%}"})


@command(Options)
def main(options: Options) -> dict:
    """Measure what share of the time prompts, drafting, and the parts of a forward pass take.

    ``least``: the share of the time that the machine needs at least, by the bytes that the layers read and
    the operations that they do.
    """
    torch.set_num_threads(options.threads)
    warm_up()
    job = night_options.job(options, pick=False)
    requests, lines, peaks = _requests(task.read(job, max(options.rows), options.pool)), [], {}
    decode = job.config.decode
    with work_folder(options.work) as work:
        for dtype in options.dtypes:
            target = Target.load(job.model_path, dtype, "cpu")
            target.release_weights()
            peaks[dtype] = peak = Peaks.measure(target.dtype)
            for batch, rows in zip(options.batch, options.rows, strict=True):
                for method in METHODS:
                    line = measure(target, requests[:rows], method, batch, decode.max_new_tokens, peak,
                                   work / "latency", decode.repetition_penalty)
                    lines.append({"dtype": dtype} | line)
                    _LOG.info("%s, %s, batch %d: %.1f tokens/s", dtype, method, batch, line["tokens_per_s"])
    print_table("Share of the time", [_shares(line) for line in lines])
    for dtype, peak in peaks.items():
        print(f"{dtype}: {peak.bytes_per_s / 1e9:.1f} GB/s, {peak.flops / 1e9:.0f} GFLOP/s")
    return {"rows": lines, "peaks": {dtype: vars(peak) for dtype, peak in peaks.items()},
            "model": job.config.model.name, "threads": options.threads,
            "longest_prompt": int(np.max([len(request.prompt_ids) for request in requests])),
            "machine": machine.describe(torch.device("cpu"))}
