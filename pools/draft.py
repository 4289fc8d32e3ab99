"""Draft trees for a whole batch from several pools and the rows' own text, in one compiled call.

A node's probability is blended over context orders n = N ... 1 and, within an order, over sources from the
nearest (prediction by partial matching): an order's and source's share of the weight that is left depends
on how often the last n tokens occur there and how much differs behind them (``pools.blend``, with weights
from ``pools.learn``), and goes to what followed them. Trees grow best first, so a tree holds the most
probable paths with all their ancestors. How much is read grows with the budget, and so the scores
change a little with it.

Rows depend on nothing but themselves: same tokens, pools, settings and budget give the same tree.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pools.errors import PoolError
from pools.index import Index
from pools.kernel import draft_rows
from pools.live import MAX_WINDOW
from pools.scratch import scratch
from pools.tree import SOURCE_MODEL, SOURCE_OWN, SOURCE_PROMPT, DraftBatch

MAX_CONTEXT = 32
NODES_A_THREAD = 512  # under it, starting a thread costs more than it saves


@dataclass(frozen=True)
class DraftSettings:
    """depth    longest path
    context  longest context looked up; a pool limits it to its own depth - 1
    lam      None: as each pool learned. Else lambda of the blend, how many occurrences a context needs to be
             trusted by half: one number, or one for each context order from 1
    lam_of   (SOURCE_*, lambda) pairs for sources that differ from ``lam``
    live     whether the row's own tokens are a source
    window   how many of them, at most MAX_WINDOW
    threads  threads for a large batch; 0: the processors this process may use
    """

    depth: int = 12
    context: int = 31
    lam: float | tuple[float, ...] | None = None
    lam_of: tuple[tuple[int, float | tuple[float, ...]], ...] = ((SOURCE_PROMPT, 2.0), (SOURCE_OWN, 1.5))
    live: bool = True
    window: int = 2048
    threads: int = 0


@dataclass(frozen=True, eq=False)
class Sources:
    """The pools of R rows as the compiled drafter takes them; for many calls with the same rows.

    owner      keeps the indexes open
    row_pools  int64 (R, S)  ``Index.address`` of each row's pools, nearest first; 0: none
    """

    owner: object
    row_pools: np.ndarray

    def __len__(self) -> int:
        return len(self.row_pools)

    @staticmethod
    def of(pools: tuple[tuple[Index, ...], ...]) -> "Sources":
        slots = max(1, max(map(len, pools), default=0))
        none = [0] * slots
        rows = [[index.address for index in row] + none[len(row):] for row in pools]
        return Sources(pools, np.array(rows, np.int64).reshape(len(pools), slots))


class Prepared:
    """Drafts for many calls with the same rows, without looking at anything twice that does not change."""

    def __init__(self, sources: Sources, settings: DraftSettings, prompts: np.ndarray | None = None):
        """prompts int32 (R,): tokens of each row that are its prompt's; None: none.

        Raises PoolError where settings are impossible.
        """
        self._sources = sources
        self._deepest, self._window = settings.depth, settings.window if settings.live else 0
        self._lambdas = _lambdas(settings)
        self._threads = settings.threads or _processors()
        self._batch: DraftBatch | None = None
        self._prompts = (np.zeros(len(sources), np.int32) if prompts is None
                         else np.ascontiguousarray(prompts, np.int32))

    def __call__(self, context: np.ndarray, lengths: np.ndarray, budgets: np.ndarray, depths: np.ndarray,
                 least: float) -> DraftBatch:
        """As ``draft``, which looks whether the shapes fit; all C-ordered int32. The next call of the same
        shape writes over the answer: arrays that are new are not in the processor's caches.
        """
        each = budgets.tolist()  # Python's max and sum: numpy's cost microseconds on a few rows
        rows, nodes = shape = len(each), max(0, *each) if each else 0
        batch = self._batch
        if batch is None or batch.tokens.shape != shape:
            batch = self._batch = DraftBatch(
                np.empty(shape, np.int32), np.empty(shape, np.int32), np.zeros(rows, np.int32),
                np.empty(shape, np.float32), np.empty(shape, np.uint8))
        if rows and nodes:
            known = self._sources
            arguments = (context, lengths, self._prompts, budgets, depths, self._deepest, least,
                         known.row_pools, self._lambdas, self._window,
                         batch.tokens, batch.parents, batch.sizes, batch.scores, batch.sources)
            _run(rows, sum(each), self._threads, arguments)
        return batch


def draft(
    context: np.ndarray,
    lengths: np.ndarray,
    budgets: np.ndarray,
    pools: "Sequence[Sequence[Index]] | Sources",
    settings: DraftSettings = DraftSettings(),  # noqa: B008 (frozen)
    max_depth: np.ndarray | None = None,
    prompts: np.ndarray | None = None,
    least: float = 0.0,
) -> DraftBatch:
    """One tree a row, at most ``budgets[r]`` nodes each; N of the result is the largest budget.

    context    int32 (R, L)  prompt and text so far, from column 0
    lengths    int32 (R,)    tokens in use; the tree grows behind the last
    budgets    int32 (R,)    0: an empty tree
    pools      R sequences of Index, nearest first; may be empty and may differ. Or ``Sources`` of them
    max_depth  int32 (R,)    tokens that the row may still emit; also limited by settings.depth
    prompts    int32 (R,)    tokens of each row that are its prompt's; None: none
    least      nodes with a lower score are left out

    Raises PoolError where shapes or settings are impossible.
    """
    rows = _check(context, lengths, budgets, pools)
    for name, value in (("max_depth", max_depth), ("prompts", prompts)):
        if value is not None and len(value) != rows:
            raise PoolError(f"{name} has {len(value)} rows, context has {rows}")
    if not isinstance(pools, Sources):
        pools = _sources(tuple(map(tuple, pools)))
    depths = np.full(rows, settings.depth) if max_depth is None else max_depth
    given = (np.ascontiguousarray(x, np.int32) for x in (context, lengths, budgets, depths))
    return Prepared(pools, settings, prompts)(*given, least)


def warm_up() -> None:
    """Compile, or load from the cache on disk, everything that ``draft`` runs."""
    index = Index.build([np.arange(4, dtype=np.int32)])
    row = np.array([[0, 1]], np.int32)
    one = np.ones(1, np.int32)
    draft(row, one * 2, one * 2, [[index]])


def _run(rows: int, nodes: int, threads: int, arguments: tuple) -> None:
    threads = min(threads, rows, 1 + nodes // NODES_A_THREAD)
    if threads <= 1:
        _slice(0, rows, arguments)
        return
    edges = [rows * i // threads for i in range(threads + 1)]
    executor = _executor(os.getpid(), threads)
    jobs = [executor.submit(_slice, edges[i], edges[i + 1], arguments) for i in range(threads)]
    for job in jobs:
        job.result()


def _slice(begin: int, end: int, arguments: tuple) -> None:
    row_pools, lambdas, tokens = arguments[7], arguments[8], arguments[10]
    memory = scratch(tokens.shape[1], row_pools.shape[1], lambdas.shape[1] - 1)
    draft_rows(begin, end, memory, *arguments)


@lru_cache(maxsize=4)
def _sources(pools: tuple[tuple[Index, ...], ...]) -> Sources:
    return Sources.of(pools)


@lru_cache(maxsize=1)
def _executor(process: int, threads: int) -> ThreadPoolExecutor:
    """Plain threads, as the kernel releases the lock: numba's own layers do not survive a fork."""
    return ThreadPoolExecutor(threads, thread_name_prefix="draft")


@lru_cache(maxsize=1)
def _processors() -> int:
    """Those that this process may use, as they were at the first call."""
    return len(os.sched_getaffinity(0))


@lru_cache(maxsize=64)
def _lambdas(settings: DraftSettings) -> np.ndarray:
    """float64 (kinds, context + 1): by SOURCE_* and order; -1: as the pool learned. Checks the settings."""
    if not 1 <= settings.context <= MAX_CONTEXT:
        raise PoolError(f"context {settings.context} must be from 1 to {MAX_CONTEXT}")
    if not 0 <= settings.window <= MAX_WINDOW:
        raise PoolError(f"window {settings.window} must be from 0 to {MAX_WINDOW}")
    table = np.full((SOURCE_MODEL, settings.context + 1), -1.0)
    for rows, value in [(slice(None), settings.lam), *settings.lam_of]:
        if value is None:
            continue
        values = np.asarray(value, np.float64)
        if values.ndim and values.shape != (settings.context,):
            raise PoolError(f"lam has {values.size} values, there are {settings.context} context orders")
        if not (values > 0).all():
            raise PoolError(f"lam {value} must be above 0")
        table[rows, 1:] = values
    return table


def _check(context, lengths, budgets, pools) -> int:
    if context.ndim != 2:
        raise PoolError(f"context has shape {context.shape}: it must be (rows, tokens)")
    rows = context.shape[0]
    if not len(lengths) == len(budgets) == len(pools) == rows:
        raise PoolError(f"context has {rows} rows, lengths {len(lengths)}, budgets {len(budgets)} and pools "
                        f"{len(pools)}: there must be as many of each")
    longest = max(lengths.tolist(), default=0)
    if longest > context.shape[1]:
        raise PoolError(f"a length is {longest}, context holds {context.shape[1]} tokens a row")
    return rows
