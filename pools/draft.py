"""Draft trees for a whole batch from several pools and the rows' texts so far, in one compiled call.

Node probabilities are blended over context orders n = N ... 1 and, within an order, over sources from the
nearest (prediction by partial matching, ``pools.blend``, with weights from ``pools.learn``). Trees grow best
first: a tree holds the most probable paths with all their ancestors. Larger budgets read more suffixes, which
changes the scores slightly.

Rows are independent: the same tokens, pools, settings and budget give the same tree in any batch.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pools import PoolError
from pools.index import Index
from pools.kernel import draft_rows, scratch
from pools.live import MAX_WINDOW
from pools.tree import SOURCE_MODEL, SOURCE_OWN, SOURCE_PROMPT, DraftBatch

MAX_CONTEXT = 32
NODES_PER_THREAD = 512  # below it, starting a thread costs more than it saves


@dataclass(frozen=True)
class DraftSettings:
    """Settings of retrieval drafting.

    Attributes
    ----------
    depth
        Maximum path length.
    context
        Maximum context length; a pool limits it to its depth - 1.
    pseudo_count
        Number of occurrences at which a context gets weight 0.5. None: the weights that each pool learned.
    pseudo_count_of : (SOURCE_*, pseudo-count) pairs for sources that differ from ``pseudo_count``
    live
        Whether the row's prompt and text so far are a source.
    window
        Number of these tokens searched, at most MAX_WINDOW.
    threads
        Threads for a large batch; 0: the processors available to this process.
    """

    depth: int = 32
    context: int = 31
    pseudo_count: float | None = None
    pseudo_count_of: tuple[tuple[int, float], ...] = ((SOURCE_PROMPT, 2.0), (SOURCE_OWN, 1.5))
    live: bool = True
    window: int = MAX_WINDOW
    threads: int = 0


class BatchDrafter:
    """Drafts trees in repeated calls with the same rows.

    Parameters
    ----------
    row_pools : int64 (R, S)
        ``Index.address`` of each row's pools, nearest first; 0: none. The caller keeps the indexes open.
    settings
        Settings of drafting.
    prompts : int32 (R,)
        Number of prompt tokens of each row; None: 0.

    Raises
    ------
    PoolError
        The settings are invalid.
    """

    def __init__(self, row_pools: np.ndarray, settings: DraftSettings, prompts: np.ndarray | None = None):
        self._row_pools = row_pools
        self._max_depth, self._window = settings.depth, settings.window if settings.live else 0
        self._pseudo_counts = _pseudo_counts(settings)
        self._threads = settings.threads or _processors()
        self._batch: DraftBatch | None = None
        self._prompts = (np.zeros(len(row_pools), np.int32) if prompts is None
                         else np.ascontiguousarray(prompts, np.int32))

    def __call__(self, context: np.ndarray, lengths: np.ndarray, budgets: np.ndarray, depths: np.ndarray,
                 min_score: float) -> DraftBatch:
        """As ``draft``; all arrays are C-ordered int32.

        The next call of the same shape overwrites the result: reused arrays are in the CPU caches, new ones
        are not.
        """
        row_budgets = budgets.tolist()  # max and sum of numpy take microseconds longer on a few rows
        rows, nodes = shape = len(row_budgets), max(0, *row_budgets) if row_budgets else 0
        batch = self._batch
        if batch is None or batch.tokens.shape != shape:
            batch = self._batch = DraftBatch(
                np.empty(shape, np.int32), np.empty(shape, np.int32), np.zeros(rows, np.int32),
                np.empty(shape, np.float32), np.empty(shape, np.uint8))
        if rows and nodes:
            arguments = (context, lengths, self._prompts, budgets, depths, self._max_depth, min_score,
                         self._row_pools, self._pseudo_counts, self._window,
                         batch.tokens, batch.parents, batch.sizes, batch.scores, batch.sources)
            _run(rows, sum(row_budgets), self._threads, arguments)
        return batch


def draft(context: np.ndarray, lengths: np.ndarray, budgets: np.ndarray, pools: Sequence[Sequence[Index]],
          settings: DraftSettings = DraftSettings(),  # noqa: B008 (frozen)
          max_depth: np.ndarray | None = None, prompts: np.ndarray | None = None,
          min_score: float = 0.0) -> DraftBatch:
    """Draft one token tree per row from its pools and its text so far.

    Parameters
    ----------
    context : int32 (R, L)
        Prompt and text so far, from column 0.
    lengths : int32 (R,)
        Number of tokens in use; the tree continues after the last one.
    budgets : int32 (R,)
        Maximum number of nodes; 0: an empty tree.
    pools
        R sequences of Index, nearest first, which may be empty.
    settings
        Settings of drafting.
    max_depth : int32 (R,)
        Number of tokens that the row may still emit; ``settings.depth`` also applies.
    prompts : int32 (R,)
        Number of prompt tokens of each row; None: 0.
    min_score
        Nodes with a lower score are left out.

    Returns
    -------
    DraftBatch
        R trees, padded to the largest budget.

    Raises
    ------
    PoolError
        The settings are invalid.
    """
    rows, slots = len(context), max(1, max(map(len, pools), default=0))
    addresses = [[index.address for index in row] + [0] * (slots - len(row)) for row in pools]
    depths = np.full(rows, settings.depth) if max_depth is None else max_depth
    arrays = (np.ascontiguousarray(x, np.int32) for x in (context, lengths, budgets, depths))
    row_pools = np.array(addresses, np.int64).reshape(rows, slots)
    return BatchDrafter(row_pools, settings, prompts)(*arrays, min_score)


def warm_up() -> None:
    """Compile everything that ``draft`` runs, or load it from the on-disk cache."""
    index = Index.build([np.arange(4, dtype=np.int32)])
    row = np.array([[0, 1]], np.int32)
    two = np.full(1, 2, np.int32)
    draft(row, two, two, [[index]])


def _run(rows: int, nodes: int, threads: int, arguments: tuple) -> None:
    threads = min(threads, rows, 1 + nodes // NODES_PER_THREAD)
    if threads <= 1:
        _slice(0, rows, arguments)
        return
    edges = [rows * i // threads for i in range(threads + 1)]
    executor = _executor(os.getpid(), threads)
    jobs = [executor.submit(_slice, edges[i], edges[i + 1], arguments) for i in range(threads)]
    for job in jobs:
        job.result()


def _slice(begin: int, end: int, arguments: tuple) -> None:
    row_pools, pseudo_counts, tokens = arguments[7], arguments[8], arguments[10]
    memory = scratch(tokens.shape[1], row_pools.shape[1], pseudo_counts.shape[1] - 1)
    draft_rows(begin, end, memory, *arguments)


@lru_cache(maxsize=1)
def _executor(process: int, threads: int) -> ThreadPoolExecutor:
    """Python threads, as the kernel releases the GIL: numba's threading layers do not survive a fork."""
    return ThreadPoolExecutor(threads, thread_name_prefix="draft")


@lru_cache(maxsize=1)
def _processors() -> int:
    """Number of processors that this process may use, as of the first call."""
    return len(os.sched_getaffinity(0))


@lru_cache(maxsize=64)
def _pseudo_counts(settings: DraftSettings) -> np.ndarray:
    """Check the settings and return pseudo-counts by SOURCE_* and order, float64 (kinds, context + 1).

    -1: use the weights that the pool learned.
    """
    if not 1 <= settings.context <= MAX_CONTEXT:
        raise PoolError(f"context {settings.context} must be from 1 to {MAX_CONTEXT}")
    if not 0 <= settings.window <= MAX_WINDOW:
        raise PoolError(f"window {settings.window} must be from 0 to {MAX_WINDOW}")
    table = np.full((SOURCE_MODEL, settings.context + 1), -1.0)
    for rows, value in [(slice(None), settings.pseudo_count), *settings.pseudo_count_of]:
        if value is not None:
            if not value > 0:
                raise PoolError(f"pseudo_count {value} must be above 0")
            table[rows, 1:] = value
    return table
