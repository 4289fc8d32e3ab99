"""How long a forward of this model takes on this device, against rows and queries a row."""

import time
from collections.abc import Sequence

import numpy as np

from dare_job.decode.target import Target
from dare_job.decode.tree import build
from pools.tree import ROOT, DraftBatch

CONTEXT = 128  # tokens before the root, where the model takes as many


def latency_ms(target: Target, batches: Sequence[int], queries: Sequence[int],
               repeats: int = 5) -> dict[str, dict[str, float]]:
    """Median milliseconds of a forward: {batch: {queries a row: ms}}, keys as text for JSON.

    All with the same number of tokens before the root, so that they can be compared. Sizes of ``queries``
    that the model's context does not hold with one token before are left out.
    """
    sizes, context = _fitting(target, queries)
    return {str(b): {str(q): round(float(np.median(_times(target, b, q, context, repeats))), 3)
                     for q in sizes} for b in batches}


def _fitting(target: Target, queries: Sequence[int]) -> tuple[list[int], int]:
    """Of ``queries`` those that the model has positions for, and the context to measure them in."""
    limit = target.traits.context or CONTEXT + max(queries)
    sizes = [q for q in queries if q < limit]
    return sizes, min(CONTEXT, limit - max(sizes, default=0))


def _times(target: Target, batch: int, queries: int, context: int, repeats: int) -> list[float]:
    """Milliseconds of as many forwards over trees of one path, two more left out."""
    nodes, lengths = queries - 1, np.full(batch, context)
    chain = np.tile(np.arange(ROOT, nodes - 1, dtype=np.int32), (batch, 1))
    zeros = np.zeros((batch, nodes), np.int32)
    drafts = DraftBatch(zeros, chain, np.full(batch, nodes, np.int32), None, zeros.astype(np.uint8))
    tree = build(np.zeros(batch, np.int64), drafts, np.full(batch, queries)).to(target.device)
    cache = target.new_cache(batch)
    cache.reserve(context + queries)  # what stands there costs the same
    times = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        target.forward(cache, tree, lengths)[0, 0].item()  # waits for the device
        times.append(1e3 * (time.perf_counter() - started))
    return times[2:]
