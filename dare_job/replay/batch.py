"""What one call costs that drafts for a whole batch: microseconds a row, on one thread and on all."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pools.draft import DraftSettings, draft
from pools.index import Index

ROWS = 128
_REPEATS = 15


def cost(texts: Sequence[np.ndarray], pools: Sequence[Sequence[Index]], settings: DraftSettings,
         nodes: int) -> dict:
    """Median microseconds a row of a call for ROWS rows, each somewhere in one of ``texts``, by threads."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, len(texts), ROWS)
    lengths = np.array([rng.integers(1, texts[i].size) for i in chosen], np.int32)
    context = np.zeros((ROWS, int(lengths.max())), np.int32)
    for row, (i, length) in enumerate(zip(chosen, lengths, strict=True)):
        context[row, :length] = texts[i][:length]
    budgets, sources = np.full(ROWS, nodes, np.int32), [pools[i] for i in chosen]
    found = {}
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        asked, times = replace(settings, threads=threads), []
        for _ in range(_REPEATS):
            begun = time.perf_counter()
            draft(context, lengths, budgets, sources, asked)
            times.append(time.perf_counter() - begun)
        found[str(threads)] = round(1e6 * float(np.median(times)) / ROWS, 2)
    return found
