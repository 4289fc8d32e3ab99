"""Recorded texts written again in batches: the scheduler's budgets against every row's having the same one.

What is accepted follows the recorded text, not anybody's estimate; what a step costs is read from a latency
curve, and drafting and the scheduler's own work are added as they were timed.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

from dare_job.decode.engine.draft_budget import DraftBudget
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.verify.result import VerificationResult
from pools.draft import DraftSettings, draft
from pools.index import Index
from pools.tree import DraftBatch, empty_drafts


@dataclass(frozen=True)
class Steps:
    """Of each step of a run: rows, draft nodes, milliseconds of drafting and budgets, tokens written."""

    rows: np.ndarray
    nodes: np.ndarray
    beside_ms: np.ndarray
    tokens: np.ndarray

    def tokens_per_s(self, curve: LatencyCurve) -> float:
        """Tokens a second where forwards take what the curve says."""
        most = {rows: int(self.nodes[self.rows == rows].max()) for rows in np.unique(self.rows)}
        ms = {rows: curve.forward_ms(rows, nodes) for rows, nodes in most.items()}
        forwards = sum(ms[rows][nodes] for rows, nodes in zip(self.rows, self.nodes, strict=True))
        return 1e3 * float(self.tokens.sum() / (forwards + self.beside_ms.sum()))


def fixed(texts: Sequence[np.ndarray], pools: Sequence[Sequence[Index]], batch: int, nodes: int,
          settings: DraftSettings) -> Steps:
    """Every row has up to ``nodes`` draft nodes in each step."""
    return _run(texts, pools, batch, nodes, settings, None)


def scheduled(texts: Sequence[np.ndarray], pools: Sequence[Sequence[Index]], batch: int, nodes: int,
              settings: DraftSettings, curve: LatencyCurve) -> Steps:
    """The scheduler has the batch's nodes, ``nodes`` of one row at most."""
    return _run(texts, pools, batch, nodes, settings, DraftBudget(curve, nodes))


def _run(texts, pools, batch: int, nodes: int, settings: DraftSettings,
         scheduler: DraftBudget | None) -> Steps:
    """texts int32 (tokens,) with the first token given; ``batch`` rows at once, refilled as they end."""
    context = np.zeros((batch, max(text.size for text in texts)), np.int32)
    sizes, known = np.zeros(batch, np.int64), np.ones(batch, np.int64)
    waiting, taken, record = list(range(len(texts)))[::-1], [], []
    rows = 0
    while True:
        while rows < batch and waiting:
            number = waiting.pop()
            sizes[rows], known[rows] = texts[number].size, 1
            context[rows, : sizes[rows]] = texts[number]
            taken.append(number)
            rows += 1
        if not rows:
            break
        begun = time.thread_time()
        near = [pools[number] for number in taken]
        drafts = _draft(context[:rows], known[:rows], sizes[:rows], near, nodes, settings, scheduler)
        beside_ms = 1e3 * (time.thread_time() - begun) if drafts.nodes else 0.0
        if scheduler is not None and drafts.nodes:
            drafts = scheduler.select(drafts, beside_ms)
            beside_ms = 1e3 * (time.thread_time() - begun)
        tree = build(context[np.arange(rows), known[:rows] - 1], drafts, sizes[:rows] - known[:rows] - 1)
        verdict = _follow(tree, context[:rows], known[:rows], sizes[:rows])
        if scheduler is not None:
            begun = time.thread_time()
            scheduler.observe(tree, verdict)
            beside_ms += 1e3 * (time.thread_time() - begun)
        gained = verdict.counts + 1
        known[:rows] += gained
        record.append((rows, len(tree.tokens) - rows, beside_ms, int(gained.sum())))
        for row in np.flatnonzero(known[:rows] >= sizes[:rows])[::-1]:  # the last row fills the gap
            rows -= 1
            context[row], sizes[row], known[row] = context[rows], sizes[rows], known[rows]
            taken[row] = taken[rows]
            taken.pop()
    return Steps(*map(np.array, zip(*record, strict=True)))


def _draft(context, known, sizes, pools, nodes: int, settings: DraftSettings,
           scheduler: DraftBudget | None) -> DraftBatch:
    min_score = 0.0 if scheduler is None else scheduler.min_score(len(known))
    room = (sizes - known - 1).astype(np.int32)  # a step's last token is the model's own
    if min_score is None or not nodes:
        return empty_drafts(len(known))
    most = nodes if scheduler is None else scheduler.row_nodes
    budgets = np.where(room > 0, most, 0).astype(np.int32)
    return draft(context, known.astype(np.int32), budgets, pools, settings, room, min_score=min_score)


def _follow(tree: Tree, context: np.ndarray, known: np.ndarray, sizes: np.ndarray) -> VerificationResult:
    """The branch of each tree that the recorded text takes."""
    rows = len(known)
    counts, paths = np.zeros(rows, np.int64), np.zeros((rows, tree.depth + 1), np.int64)
    tokens, parents, _, starts = tree.host
    _walk(tokens, parents, starts, context, known, sizes, counts, paths)
    yes = np.ones(rows, np.bool_)
    return VerificationResult(counts, paths, np.zeros(paths.shape, np.int32),
                              np.zeros(paths.shape, np.bool_), yes, yes, True)


@numba.njit(cache=True)
def _walk(tokens, parents, starts, context, known, sizes, counts, paths):
    for r in range(len(known)):
        node = starts[r]
        for t in range(starts[r] + 1, starts[r + 1]):
            at = known[r] + counts[r]
            if parents[t] == node and at < sizes[r] and tokens[t] == context[r, at]:
                node = t
                counts[r] += 1
                paths[r, counts[r]] = t - starts[r]
