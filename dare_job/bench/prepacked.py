"""Time of one forward pass over draft trees with and without prepacked weights, in turn.

Times are CPU times of the thread, so that other work on the machine counts less. The last line is JSON.
"""

import json
import platform
import time
from contextlib import nullcontext
from typing import Annotated

import numpy as np
import torch
import typer

from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, build
from dare_job.models.files import resolve
from pools.tree import DraftBatch

ROUNDS, CALLS = 10, 20


def main(
    model: Annotated[str, typer.Option(help="'embedded', a local folder, or a hub name.")] = "embedded",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8",
    queries: Annotated[str, typer.Option(help="Queries per row: draft tokens and the root.")] = "1,9,17",
    prompt_tokens: Annotated[int, typer.Option(help="Tokens before the tree.")] = 250,
) -> None:
    """Measure the forward of the decode engine with torch's linear layers and with prepacked ones."""
    torch.set_num_threads(1)
    target = Target.load(resolve(model), dtype, "cpu")
    rows = [measure(target, int(batch), int(query), prompt_tokens)
            for batch in batches.split(",") for query in queries.split(",")]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print(json.dumps({"rows": rows, "model": model, "dtype": dtype, "torch": torch.__version__,
                      "machine": platform.machine()}))


@torch.inference_mode()
def measure(target: Target, batch: int, queries: int, before: int) -> dict:
    """Median milliseconds of a forward, plain and packed."""
    rng, cache = np.random.default_rng(0), target.new_cache(batch)
    lengths = np.full(batch, before)
    ids = rng.integers(0, target.vocabulary, (batch, before))
    target.prefill(cache, np.arange(batch), ids, lengths)
    tree, seconds = _chain(rng, target, batch, queries - 1), {"torch": [], "packed": []}
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


def _chain(rng: np.random.Generator, target: Target, batch: int, nodes: int) -> Tree:
    """Trees of one path of random tokens."""
    shape = (batch, nodes)
    tokens = rng.integers(0, target.vocabulary, shape).astype(np.int32)
    parents = np.broadcast_to(np.arange(-1, nodes - 1, dtype=np.int32), shape).copy()
    drafts = DraftBatch(tokens, parents, np.full(batch, nodes, np.int32), np.ones(shape, np.float32),
                        np.zeros(shape, np.uint8))
    roots = rng.integers(0, target.vocabulary, batch).astype(np.int32)
    return build(roots, drafts, np.full(batch, nodes + 1, np.int32)).to(target.device)

