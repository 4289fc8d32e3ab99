"""Draft budgets of ``tune`` in batches, as in a run: ``decode.nodes: auto``, or a number for each row."""

from dataclasses import dataclass, replace

import numpy as np

from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.evaluate.replay import budgets
from dare_job.evaluate.replay.measure import interval, resampled
from dare_job.evaluate.replay.trials import Objective, Point, Trials

AUTO = "auto"


@dataclass(frozen=True)
class Rate:
    """Expected speed of a draft budget: ``nodes`` is "auto" or a number, text_ms float64 (texts,).

    ``drafting_share`` is the share of the time that drafting takes; the rest are forward passes.
    """

    point: Point
    nodes: int | str
    accepted_per_step: float
    tokens_per_s: float
    text_ms: np.ndarray
    drafting_share: float = 0.0


class Batched:
    """Replays the confirming texts in batches of one size, each setting once."""

    def __init__(self, trials: Trials, objective: Objective, batch: int):
        self._trials, self._objective, self._batch = trials, objective, batch
        self._rates: dict[tuple, Rate] = {}

    def __call__(self, point: Point, nodes: int | str) -> Rate:
        if (point, nodes) not in self._rates:
            self._rates[point, nodes] = self._measure(point, nodes)
        return self._rates[point, nodes]

    def _measure(self, point: Point, nodes: int | str) -> Rate:
        curve, batch = self._objective.curve, self._batch
        drafting = budgets.Drafting(self._objective.drafting, min(self._objective.threads, batch))
        texts, pools = self._trials.confirming(point)
        settings = replace(point.settings, threads=1)
        if not self._rates:  # compile, which would be measured
            budgets.scheduled(texts[:2], pools[:2], 1, 2, settings, curve)
        if nodes == AUTO:
            steps = budgets.scheduled(texts, pools, batch, max_row_nodes(batch), settings, curve, drafting)
        else:
            steps = budgets.fixed(texts, pools, batch, nodes, settings, drafting)
        return Rate(point, nodes, round(float(steps.tokens.sum() / steps.rows.sum() - 1), 4),
                    steps.tokens_per_s(curve), steps.text_ms(curve, len(texts)),
                    round(steps.drafting_share(curve), 4))


def fastest(batched: Batched, start: Point, point: Point) -> Rate:
    """The settings to write, the faster of two with ``auto``.

    A fixed number of nodes is never written: it would switch off the draft budget, which adapts to the batch
    and to the acceptance of the run.
    """
    return max((batched(start, AUTO), batched(point, AUTO)), key=lambda rate: rate.tokens_per_s)


def ratio_interval(ours: Rate, theirs: Rate) -> list[float]:
    """Paired 95 % bootstrap interval over texts of one rate relative to another."""
    mine, other = resampled(ours.text_ms, theirs.text_ms)
    return interval(other / mine)
