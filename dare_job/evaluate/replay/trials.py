"""Replays for the search of ``tune``, each done once: few texts screen settings, the others confirm them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dare_job.data.recorded_texts import by_digest
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.evaluate.replay import sources
from dare_job.evaluate.replay.drafters import Blend
from dare_job.evaluate.replay.measure import replay
from dare_job.evaluate.replay.sources import Corpus
from pools.draft import NODES_PER_THREAD, DraftSettings
from pools.index import Index


@dataclass(frozen=True)
class Point:
    """Draft settings except the budget.

    Attributes
    ----------
    group_texts, global_texts
        Maximum number of texts in a group's pool and in the global pool; None: all.
    """

    pool: tuple[str, ...]
    context: int
    depth: int
    lam: float | None
    group_texts: int | None = None
    global_texts: int | None = None

    @property
    def settings(self) -> DraftSettings:
        return DraftSettings(depth=self.depth, context=self.context, pseudo_count=self.lam)


@dataclass(frozen=True)
class Trial:
    """accepted_per_step, microseconds of drafting per row, and int64 (texts, 2) of (accepted, steps)."""

    accepted_per_step: float
    draft_us: float
    per_text: np.ndarray


@dataclass(frozen=True)
class Objective:
    """Expected tokens per second: a step costs its forward pass and the drafting of its rows.

    Attributes
    ----------
    curve
        Milliseconds of a forward pass.
    drafting
        Microseconds of drafting (per row, per draft token); None: as measured by each replay.
    threads
        Maximum threads that draft a batch.
    """

    curve: LatencyCurve
    drafting: tuple[float, float] | None
    threads: int

    def step_ms(self, batch: int, nodes: int, draft_us: float) -> float:
        """Milliseconds of a step of ``batch`` rows; without nodes autoregressive decoding."""
        if nodes == 0:
            return self.curve.ms(batch, 1)
        if self.drafting:
            draft_us = self.drafting[0] + self.drafting[1] * nodes
        threads = min(self.threads, batch, 1 + batch * nodes // NODES_PER_THREAD)
        return self.curve.ms(batch, nodes + 1) + draft_us * batch / threads / 1e3

    def tokens_per_s(self, batch: int, nodes: int, trial: Trial) -> float:
        """Computed throughput: each row gets its accepted tokens and one more per step."""
        return 1e3 * batch * (trial.accepted_per_step + 1) / self.step_ms(batch, nodes, trial.draft_us)


class Trials:
    """Replays of one corpus, in the order of the SHA-256 of the ids: smaller pools are parts of larger ones.

    The first ``screened`` of the replayed texts screen settings, the others confirm them.
    """

    def __init__(self, corpus: Corpus, screened: int, done: Callable[[], None]):
        """done: called after each replay."""
        test, rest = by_digest(corpus.test_ids), by_digest(corpus.rest_ids)
        self.corpus = replace(
            corpus, test=[corpus.test[i] for i in test], test_ids=[corpus.test_ids[i] for i in test],
            rest=[corpus.rest[i] for i in rest], rest_ids=[corpus.rest_ids[i] for i in rest])
        self._done = done
        self._parts = {"screen": slice(0, screened), "confirm": slice(screened, None)}
        self._trials: dict[tuple, Trial] = {}
        self._pools: dict[tuple, list[tuple[Index, ...]]] = {}

    @property
    def count(self) -> int:
        """Replays done so far."""
        return len(self._trials)

    def __call__(self, point: Point, nodes: int, part: str) -> Trial:
        """part: screen | confirm. Without nodes there is no replay: every step generates one token."""
        texts = self.corpus.test[self._parts[part]]
        if nodes == 0:
            return Trial(0.0, 0.0, np.array([[0, text.size - 1] for text in texts]))
        if (point, nodes, part) not in self._trials:
            pools = self._nearest_first(point)[self._parts[part]]
            figures = replay(texts, Blend(pools, point.settings), nodes)
            self._trials[point, nodes, part] = Trial(figures["accepted_per_step"], figures["cpu_p50_us"],
                                                     figures["per_text"])
            self._done()
        return self._trials[point, nodes, part]

    def confirming(self, point: Point) -> tuple[list[np.ndarray], list[tuple[Index, ...]]]:
        """The texts that confirm settings, and the pools of each."""
        part = self._parts["confirm"]
        return self.corpus.test[part], self._nearest_first(point)[part]

    def _nearest_first(self, point: Point) -> list[tuple[Index, ...]]:
        key = (point.pool, point.group_texts, point.global_texts)
        if key not in self._pools:
            texts = self.corpus.rest[:point.global_texts] if "global" in point.pool else []
            self._pools[key] = sources.nearest_first(self.corpus, point.pool, Index.build(texts),
                                                     point.group_texts)
        return self._pools[key]
