"""Measures one cell: rows decoded one at a time, and known texts replayed with the cell's drafts.

Also the retrieval rule of DARE's authors as a drafter of the engine, and the edit distance of two texts.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numba
import numpy as np

from dare_job.bench.pools.pools import NONE, PUBLISHED, Cell, Pools
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Drafter, Request
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.measured import generate_once
from dare_job.evaluate.replay.measure import accepted
from pools.draft import DraftSettings
from pools.frequency import FrequencyDrafter
from pools.index import Index
from pools.tree import SOURCE_GLOBAL, DraftBatch


@numba.njit(cache=True)
def distance(a, b):
    """Edit distance of two texts over the longer one's tokens; 0 where both are empty."""
    above = np.arange(len(b) + 1)
    for i in range(len(a)):
        left, corner = i + 1, above[0]
        above[0] = left
        for j in range(len(b)):
            left = min(left + 1, above[j + 1] + 1, corner + (a[i] != b[j]))
            corner = above[j + 1]
            above[j + 1] = left
    return above[len(b)] / max(len(a), len(b), 1)


class PublishedDrafter:
    """``pools.frequency`` on each row's first pool; the row's own text so far is not used."""

    def __init__(self, nodes: int, depth: int):
        self._nodes = nodes
        self._drafter_of = cache(lambda index: FrequencyDrafter(index, nodes, depth))

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, min_score: float = 0.0) -> DraftBatch:
        """As ``Drafter.draft``. All scores are 1, and budgets above 0 do not limit the tree's size."""
        shape = (len(requests), self._nodes)
        batch = DraftBatch(np.zeros(shape, np.int32), np.zeros(shape, np.int32),
                           np.zeros(len(requests), np.int32), np.ones(shape, np.float32),
                           np.full(shape, SOURCE_GLOBAL, np.uint8))
        for row, request in enumerate(requests):
            if budgets[row]:
                tokens, parents = self._drafter_of(request.pools[0])(context[row], int(lengths[row]))
                batch.sizes[row] = size = len(tokens)
                batch.tokens[row, :size], batch.parents[row, :size] = tokens, parents
        return batch


_LOG = logging.getLogger(__name__)
Texts = Mapping[str, np.ndarray]  # token ids by user


@dataclass(frozen=True)
class Budget:
    """Draft tokens per row and forward pass, and maximum number of new tokens per row.

    Attributes
    ----------
    repetition_penalty
        As in ``EngineSettings``.
    """

    nodes: int
    tokens: int
    repetition_penalty: float | None = None


class Bench:
    """Measures cells on the same rows.

    Parameters
    ----------
    prompts
        By user; the first ``rows`` are decoded.
    known
        The model's greedy text for every prompt.
    """

    def __init__(self, target: Target, pools: Pools, prompts: Texts, known: Texts, rows: int, budget: Budget):
        self._target, self._pools, self._prompts, self._known = target, pools, prompts, known
        self._rows, self._budget = sorted(list(prompts)[:rows], key=lambda user: len(prompts[user])), budget
        self._warm: set[tuple[str, str, str]] = set()

    def block(self, cells: Sequence[Cell]) -> list[dict]:
        """Sums of each cell; the first is autoregressive decoding, the others' reference."""
        self._warm_up(cells)
        plain: Texts = {}
        measured = []
        for cell in cells:
            pools = self._pools.of(cell.pool, cell.size)
            texts, sums = self._decode(cell, pools)
            plain = plain or texts
            distances = [distance(texts[user], plain[user]) for user in self._rows]
            sums |= {"edit_distance": float(np.mean(distances)), "differ": int(np.count_nonzero(distances)),
                     "pool_texts": _mean_texts(pools)}
            if cell.strict and cell.pool != NONE:
                sums |= along(self._drafter(cell), [self._request(user, pools) for user in self._known],
                              list(self._known.values()), self._budget.nodes)
            measured.append(sums)
            _LOG.info("%d of %d: %s, %s, %s, %.1f s", len(measured), len(cells), cell.pool, cell.retrieval,
                      cell.named, sums["seconds"])
        return measured

    def _warm_up(self, cells: Sequence[Cell]) -> None:
        """Compile everything that the cells run, on few tokens."""
        for kind, cell in {(cell.pool, cell.retrieval, cell.rule): cell for cell in cells}.items():
            if kind not in self._warm:
                pools = self._pools.of(cell.pool, cell.size)
                list(self._engine(cell, 8).run([self._request(self._rows[0], pools)]))
                self._warm.add(kind)

    def _decode(self, cell: Cell, pools: Mapping[str, tuple[Index, ...]]) -> tuple[Texts, dict]:
        """Texts by user, and sums over the rows; times in seconds."""
        engine = self._engine(cell, self._budget.tokens)
        measured = generate_once(engine, [self._request(user, pools) for user in self._rows])
        return measured.texts[0], {
            "rows": len(self._rows), "tokens": measured.tokens, "steps": measured.steps,
            "accepted": measured.accepted, "relaxed": measured.relaxed, "cut": measured.cut,
            "retrieval": 1e-3 * measured.retrieval_ms, "seconds": measured.seconds[0],
            "processor": measured.processor[0]}

    def _request(self, user: str, pools: Mapping[str, tuple[Index, ...]]) -> Request:
        return Request(user, self._prompts[user], pools[user])

    def _engine(self, cell: Cell, tokens: int) -> Engine:
        plain = cell.pool == NONE
        settings = EngineSettings(rule=cell.rule, k=cell.k, p=cell.p, max_new_tokens=tokens, batch_size=1,
                                  nodes=0 if plain else self._budget.nodes, score="never",
                                  repetition_penalty=self._budget.repetition_penalty)
        return Engine(self._target, settings, None if plain else self._drafter(cell))

    def _drafter(self, cell: Cell) -> Drafter:
        if cell.retrieval == PUBLISHED:
            return PublishedDrafter(self._budget.nodes, EngineSettings.depth)
        return RetrievalDrafter(DraftSettings(threads=1))


def along(drafter: Drafter, requests: Sequence[Request], texts: Sequence[np.ndarray], nodes: int) -> dict:
    """Strict decoding of known texts, without the model: the same trees and steps.

    The prompt's forward pass gives the first token. Returns ``along``, accepted tokens and steps of each
    text, and ``retrieval_median``, seconds of one call for one row.
    """
    counts, times = [], []
    for request, text in zip(requests, texts, strict=True):
        tokens = np.concatenate([request.prompt_ids, text]).astype(np.int32)
        known, gained, steps = len(request.prompt_ids) + 1, 0, 0
        while known < len(tokens):
            began = time.perf_counter()
            trees = drafter.draft([request], tokens[None], np.array([known], np.int32),
                                  np.array([nodes], np.int32), np.array([EngineSettings.depth], np.int32))
            times.append(time.perf_counter() - began)
            size = int(trees.sizes[0])
            path = len(accepted(trees.tokens[0, :size], trees.parents[0, :size], tokens[known:]))
            known, gained, steps = known + path + 1, gained + path, steps + 1
        counts.append([gained, steps])
    return {"along": counts, "retrieval_median": float(np.median(times)) if times else 0.0}


def _mean_texts(pools: Mapping[str, tuple[Index, ...]]) -> float:
    """Number of texts in a row's pools, mean over rows."""
    return float(np.mean([sum(index.texts for index in indexes) for indexes in pools.values()]))
