"""``bench time-shares``: the parts that decoding spends its time on, and the least time that they can take.

The least time of a layer is that of the slower of two things, as measured in the same run: reading its
weights, or keys and values, from memory once, and multiplying (Williams, Waterman and Patterson 2009).
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from unittest.mock import patch

import torch
from torch.nn.functional import linear

from dare_job.bench.cli import command
from dare_job.bench.decode import methods
from dare_job.bench.decode.methods import Budget, Learned
from dare_job.bench.gpu import machine
from dare_job.bench.gpu.machine import Ceilings
from dare_job.bench.kept import work_folder
from dare_job.bench.peers import task
from dare_job.cli import options as night_options
from dare_job.decode.engine import engine
from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model import llama_forward, tree_attention
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.evaluate.measured import print_table
from pools.draft import warm_up
from pools.index import Index

PARTS = ("prompts", "drafting", "linear", "attention", "rotation", "logits", "other_forward",
         "verification", "other")  # norms, gates and additions are part of linear layers
METHODS = (methods.AUTOREGRESSIVE, methods.STRICT)
_READ_BYTES, _PRODUCT = 1 << 29, (512, 1536, 1536)  # more than caches hold; tokens, in and out features
_REPEATS = 5
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options(task.Options):
    """Options of ``bench time-shares``."""


class Clock:
    """Adds up the seconds of parts that call one another; a part's time excludes that of the parts it calls.

    What prompts call counts as prompts.

    Attributes
    ----------
    seconds, min_seconds
        By part, the time that it took and the least that it can take.
    """

    def __init__(self, ceilings: Ceilings):
        self.seconds, self.min_seconds = Counter(), Counter()
        self._ceilings, self._open, self._since = ceilings, ["other"], time.perf_counter()

    def timed(self, part: str, function: Callable) -> Callable:
        """The function, or the method of a class, whose calls count as the part."""
        def call(*args, **kwargs):
            self.count()
            self._open.append(self._part(part))
            try:
                return function(*args, **kwargs)
            finally:
                self.count()
                self._open.pop()

        return call

    def work(self, part: str, moved: int, computed: int) -> None:
        """Note bytes that a part reads, and floating-point operations that it does."""
        self.min_seconds[self._part(part)] += self._ceilings.floor_ms(moved, computed) / 1e3

    def count(self) -> None:
        """Add the time up to now to the part that is running."""
        now = time.perf_counter()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def _part(self, part: str) -> str:
        return "prompts" if self._open[-1] == "prompts" else part


def ceilings() -> Ceilings:
    """Bytes per second of adding up what caches do not hold, and FLOPs per second of the fastest product.

    Products of both types count: float32 may be the faster one, and bfloat16 can be widened to it.
    """
    numbers, cpu = torch.ones(_READ_BYTES // 4), torch.device("cpu")
    tokens, inner, outer = _PRODUCT
    with torch.inference_mode():
        read_ms = machine.median_ms(numbers.sum, cpu, _REPEATS)
        products = [(torch.ones(tokens, inner, dtype=dtype), torch.ones(outer, inner, dtype=dtype))
                    for dtype in (torch.float32, torch.bfloat16)]
        product_ms = min(machine.median_ms(partial(linear, *product), cpu, _REPEATS) for product in products)
    return Ceilings(1e3 * numbers.nbytes / read_ms, 1e3 * 2 * tokens * inner * outer / product_ms)


@contextmanager
def timers(target: Target, limits: Ceilings) -> Iterator[Clock]:
    """Time the parts of all that is decoded with the target while the block runs."""
    clock = Clock(limits)
    run_linear, run_attention = llama_forward._Linear.__call__, tree_attention.tree_sdpa
    as_part = {part: clock.timed(part, run_linear) for part in ("linear", "logits")}
    as_attention = clock.timed("attention", run_attention)

    def run_layer(layer, values, *args, **kwargs):
        part = "logits" if target.llama is not None and layer is target.llama._head else "linear"
        clock.work(part, layer.weights * values.element_size(), 2 * len(values) * layer.weights)
        return as_part[part](layer, values, *args, **kwargs)

    def attention(module, query, keys, values, *args, **kwargs):
        clock.work("attention", keys.nbytes + values.nbytes, 4 * query.numel() * keys.shape[-2])
        return as_attention(module, query, keys, values, *args, **kwargs)

    with ExitStack() as stack:
        for owner, name, part in (
                (Engine, "_verify_prefill", "prompts"), (Engine, "_draft", "drafting"),
                (engine, "build", "drafting"), (Engine, "_verify_logits", "verification"),
                (target, "_forward", "other_forward"), (llama_forward, "_rotate", "rotation"),
                (TreeCache, "update", "attention")):
            stack.enter_context(patch.object(owner, name, clock.timed(part, getattr(owner, name))))
        stack.enter_context(patch.object(llama_forward._Linear, "__call__", run_layer))
        stack.enter_context(patch.object(tree_attention, "tree_sdpa", attention))
        yield clock
        clock.count()


def measure(target: Target, requests: list[Request], method: str, budget: Budget, limits: Ceilings) -> dict:
    """One line of the table: tokens per second, and seconds and least seconds by part."""
    learned = Learned(method, target, budget)
    methods.run_method(method, target, requests[:2], replace(budget, tokens=8), learned)  # compiles
    with timers(target, limits) as clock:
        measured = methods.run_method(method, target, requests, budget, learned)
    return {"method": method, "batch": budget.batch, "rows": len(requests), "tokens": measured.tokens,
            "tokens_per_s": round(measured.tokens_per_s, 2),
            "accepted_per_step": round(measured.accepted / max(1, measured.steps), 2),
            "seconds": {part: round(clock.seconds[part], 4) for part in PARTS},
            "least": {part: round(clock.min_seconds[part], 4) for part in PARTS if clock.min_seconds[part]}}


def _shares(line: dict) -> dict:
    """A line of the printed table: shares of the time, and of the least time in all."""
    whole = sum(line["seconds"].values())
    named = {name: line[name] for name in ("dtype", "method", "batch", "tokens_per_s", "accepted_per_step")}
    return (named | {part: f"{seconds / whole:.0%}" for part, seconds in line["seconds"].items()}
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
    rows = task.read(job, max(options.rows), options.pool)
    pool = Index.build([*rows.pool, *rows.previous.values()])
    requests = [task.request(name, prompt, rows.previous.get(name), pool)
                for name, prompt in rows.prompts.items()]
    lines, limits, decode = [], ceilings(), job.config.decode
    with work_folder(options.work) as work:
        for dtype in options.types():
            target = Target.load(job.model_path, dtype, "cpu")
            target.release_weights()
            for batch, count in zip(options.batch, options.rows, strict=True):
                budget = Budget(batch, max_row_nodes(batch), decode.max_new_tokens, options.threads,
                                work / "latency", decode.repetition_penalty)
                for method in METHODS:
                    line = measure(target, requests[:count], method, budget, limits)
                    lines.append({"dtype": dtype} | line)
                    _LOG.info("%s, %s, batch %d: %.1f tokens/s", dtype, method, batch, line["tokens_per_s"])
    print_table("Share of the time", [_shares(line) for line in lines])
    print(f"{limits.bandwidth / 1e9:.1f} GB/s, {limits.flops / 1e9:.0f} GFLOP/s")
    return {"rows": lines, "ceilings": asdict(limits),
            "model": job.config.model.name, "threads": options.threads,
            "machine": machine.describe(torch.device("cpu"))}
