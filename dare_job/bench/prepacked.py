"""Time of one forward pass over draft trees with and without prepacked weights, in turn.

Times are CPU times of the thread, so that other work on the machine counts less. The last line is JSON.
"""

import platform
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from dare_job.bench.options import command, ints
from dare_job.config.options import option
from dare_job.decode.engine.latency import chains
from dare_job.decode.model.target import Target
from dare_job.models.files import resolve

ROUNDS, CALLS = 10, 20


@dataclass(frozen=True)
class Options:
    """Options of ``bench prepacked``."""

    model: str = option("'embedded', a local folder, or a hub name.", "embedded")
    dtype: str = option("float32 or bfloat16.", "float32")
    batches: Sequence[int] = option("Batch sizes.", (1, 8), parse=ints)
    queries: Sequence[int] = option("Queries per row: draft tokens and the root.", (1, 9, 17), parse=ints)
    prompt_tokens: int = option("Tokens before the tree.", 250)


@command(Options)
def main(options: Options) -> dict:
    """Measure the forward of the decode engine with torch's linear layers and with prepacked ones."""
    torch.set_num_threads(1)
    target = Target.load(resolve(options.model), options.dtype, "cpu")
    rows = [measure(target, *shape, options.prompt_tokens)
            for shape in product(options.batches, options.queries)]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    return {"rows": rows, "model": options.model, "dtype": options.dtype, "torch": torch.__version__,
            "machine": platform.machine()}


@torch.inference_mode()
def measure(target: Target, batch: int, queries: int, before: int) -> dict:
    """Median milliseconds of a forward, plain and packed."""
    rng, cache = np.random.default_rng(0), target.new_cache(batch)
    lengths = np.full(batch, before)
    ids = rng.integers(0, target.vocabulary, (batch, before))
    target.prefill(cache, np.arange(batch), ids, lengths)
    tree, seconds = chains(batch, queries).to(target.device), {"torch": [], "packed": []}
    for _ in range(ROUNDS):
        for name, context in (("torch", target.prepacked.off), ("packed", nullcontext)):
            with context():
                target.forward(cache, tree, lengths)
                for _ in range(CALLS):
                    started = time.thread_time()
                    target.forward(cache, tree, lengths)
                    seconds[name].append(time.thread_time() - started)
    plain, packed = (1e3 * float(np.median(seconds[name])) for name in ("torch", "packed"))
    return {"batch": batch, "queries": queries, "torch_ms": round(plain, 3), "packed_ms": round(packed, 3),
            "ratio": round(plain / packed, 2)}
