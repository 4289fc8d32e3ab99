"""Replays recorded texts in batches, with a draft budget or the same number of draft nodes for every row.

Acceptance follows the recorded text. The time of a step is that of its forward pass by a latency curve, plus
the measured time of drafting and of the draft budget. Curves are read from a file or measured with a model.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np

from dare_job.decode.engine.draft_budget import AdaptiveBudget
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.verify.result import VerificationResult
from dare_job.errors import DataError
from dare_job.observe import progress
from pools.draft import DraftSettings, draft
from pools.index import Index
from pools.tree import DraftBatch, empty_drafts

_QUERIES = (1, 2, 3, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129, 257, 513)


@dataclass(frozen=True)
class Steps:
    """By step of a run: rows, draft nodes, milliseconds of drafting and budgets, generated tokens.

    ``texts`` holds the places of the texts of each step.
    """

    rows: np.ndarray
    nodes: np.ndarray
    drafting_ms: np.ndarray
    tokens: np.ndarray
    texts: tuple[tuple[int, ...], ...]

    def tokens_per_s(self, curve: LatencyCurve) -> float:
        """Tokens per second with the forward times of a latency curve."""
        return 1e3 * float(self.tokens.sum() / self._ms(curve).sum())

    def drafting_share(self, curve: LatencyCurve) -> float:
        """Share of the time that drafting and budgets take; the rest are forward passes."""
        return float(self.drafting_ms.sum() / self._ms(curve).sum())

    def text_ms(self, curve: LatencyCurve, texts: int) -> np.ndarray:
        """Milliseconds of each of ``texts`` texts, float64 (texts,): a step's time is shared equally."""
        total = np.zeros(texts)
        for active, share in zip(self.texts, self._ms(curve) / self.rows, strict=True):
            total[list(active)] += share
        return total

    def _ms(self, curve: LatencyCurve) -> np.ndarray:
        max_nodes = {rows: int(self.nodes[self.rows == rows].max()) for rows in np.unique(self.rows)}
        ms = {rows: curve.forward_ms(rows, nodes) for rows, nodes in max_nodes.items()}
        forwards = [ms[rows][nodes] for rows, nodes in zip(self.rows, self.nodes, strict=True)]
        return np.array(forwards) + self.drafting_ms


@dataclass(frozen=True)
class Drafting:
    """Time of drafting: of one thread, shared by ``threads``.

    Attributes
    ----------
    us
        Microseconds (per row, per draft token); None: as measured, with the draft budget.
    """

    us: tuple[float, float] | None = None
    threads: int = 1

    def ms(self, started: float, rows: int, nodes: int) -> float:
        """Milliseconds for so many rows and nodes, or since ``started`` (``time.thread_time``)."""
        if self.us is None:
            return 1e3 * (time.thread_time() - started) / self.threads
        return (self.us[0] * rows + self.us[1] * nodes) / self.threads / 1e3


_MEASURED = Drafting()


def fixed(texts: Sequence[np.ndarray], pools: Sequence[Sequence[Index]], batch: int, nodes: int,
          settings: DraftSettings, drafting: Drafting = _MEASURED) -> Steps:
    """Replay texts, int32 (tokens,) each, with up to ``nodes`` draft nodes for every row in each step."""
    return _run(texts, pools, batch, nodes, settings, None, drafting)


def scheduled(texts: Sequence[np.ndarray], pools: Sequence[Sequence[Index]], batch: int, nodes: int,
              settings: DraftSettings, curve: LatencyCurve, drafting: Drafting = _MEASURED) -> Steps:
    """Replay as ``fixed``, with the nodes that the draft budget selects, at most ``nodes`` of one row."""
    return _run(texts, pools, batch, nodes, settings, AdaptiveBudget(curve, nodes), drafting)


def _run(texts, pools, batch: int, nodes: int, settings: DraftSettings, budget: AdaptiveBudget | None,
         drafting: Drafting) -> Steps:
    """texts int32 (tokens,), the first token known; ``batch`` rows at once, replaced as they end."""
    context = np.zeros((batch, max(text.size for text in texts)), np.int32)
    sizes, known = np.zeros(batch, np.int64), np.ones(batch, np.int64)
    waiting, active, record, members = list(range(len(texts)))[::-1], [], [], []
    rows = 0
    while True:
        while rows < batch and waiting:
            number = waiting.pop()
            sizes[rows], known[rows] = texts[number].size, 1
            context[rows, : sizes[rows]] = texts[number]
            active.append(number)
            rows += 1
        if not rows:
            break
        started = time.thread_time()
        row_pools = [pools[number] for number in active]
        drafts = _draft(context[:rows], known[:rows], sizes[:rows], row_pools, nodes, settings, budget)
        drafted = int(drafts.sizes.sum())
        drafting_ms = drafting.ms(started, rows, drafted) if drafts.nodes else 0.0
        if budget is not None and drafts.nodes:
            drafts = budget.select(drafts, drafting_ms)
            drafting_ms = drafting.ms(started, rows, drafted)
        tree = build(context[np.arange(rows), known[:rows] - 1], drafts, sizes[:rows] - known[:rows] - 1)
        result = _verify(tree, context[:rows], known[:rows], sizes[:rows])
        if budget is not None:
            started = time.thread_time()
            budget.observe(tree, result)
            drafting_ms += drafting.ms(started, 0, 0)
        tokens = result.counts + 1
        known[:rows] += tokens
        record.append((rows, len(tree.tokens) - rows, drafting_ms, int(tokens.sum())))
        members.append(tuple(active))
        for row in np.flatnonzero(known[:rows] >= sizes[:rows])[::-1]:  # the last row fills the gap
            rows -= 1
            context[row], sizes[row], known[row] = context[rows], sizes[rows], known[rows]
            active[row] = active[rows]
            active.pop()
    return Steps(*map(np.array, zip(*record, strict=True)), tuple(members))


def _draft(context, known, sizes, pools, nodes: int, settings: DraftSettings,
           budget: AdaptiveBudget | None) -> DraftBatch:
    min_score = 0.0 if budget is None else budget.min_score(len(known))
    depths = (sizes - known - 1).astype(np.int32)  # a step's last token is the model's own
    if min_score is None or not nodes:
        return empty_drafts(len(known))
    row_nodes = nodes if budget is None else budget.row_nodes
    budgets = np.where(depths > 0, row_nodes, 0).astype(np.int32)
    return draft(context, known.astype(np.int32), budgets, pools, settings, depths, min_score=min_score)


def _verify(tree: Tree, context: np.ndarray, known: np.ndarray, sizes: np.ndarray) -> VerificationResult:
    """Accept the path of each tree that agrees with the recorded text."""
    rows = len(known)
    counts, paths = np.zeros(rows, np.int64), np.zeros((rows, tree.depth + 1), np.int64)
    tokens, parents, _, starts = tree.host
    _accept(tokens, parents, starts, context, known, sizes, counts, paths)
    yes = np.ones(rows, np.bool_)
    return VerificationResult(counts, paths, np.zeros(paths.shape, np.int32),
                              np.zeros(paths.shape, np.bool_), yes, yes, True)


@numba.njit(cache=True)
def _accept(tokens, parents, starts, context, known, sizes, counts, paths):
    for r in range(len(known)):
        node = starts[r]
        for t in range(starts[r] + 1, starts[r + 1]):
            at = known[r] + counts[r]
            if parents[t] == node and at < sizes[r] and tokens[t] == context[r, at]:
                node = t
                counts[r] += 1
                paths[r, counts[r]] = t - starts[r]


def read_curve(path: Path) -> LatencyCurve:
    """The curve under ``latency_ms`` of a JSON file.

    Raises
    ------
    DataError
        The file cannot be read, or its curve is missing or invalid. The message names the file and what is
        wrong.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"--latency {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"--latency {path} is not JSON: {error}") from None
    table = content.get("latency_ms") if isinstance(content, dict) else None
    return LatencyCurve.of(table, f"--latency {path}")


def measure_curve(model: str, batches: Sequence[int], nodes: int, dtype: str = "float32",
                  device: str = "auto") -> dict[str, dict[str, float]]:
    """{batch: {queries per row: ms}} of a model on this machine, up to ``nodes`` draft tokens per row.

    Raises
    ------
    ModelError
        The model is missing, damaged or not supported.
    ConfigError
        The device is not available.
    """
    from dare_job.decode.engine.latency import latency_ms
    from dare_job.decode.model.target import Target
    from dare_job.models.files import resolve

    queries = sorted({q for q in _QUERIES if q <= nodes} | {nodes + 1})
    table = {}
    with progress.counting(f"measuring forward passes of {model}", len(batches), unit="batches") as counter:
        target = Target.load(resolve(model), dtype, device, False)
        for batch in batches:
            counter.details = f"batch size {batch}"
            table |= latency_ms(target, [batch], queries, repeats=11)
            counter.advance()
    return table
