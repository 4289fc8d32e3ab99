"""The decoding methods that are compared, and their figures: one row per method and batch size."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine import latency_probe
from dare_job.decode.engine.draft_budget import AdaptiveBudget
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.measured import Measured, generate_once, target_row
from dare_job.evaluate.methods.generate import by_generate
from pools.draft import DraftSettings

GENERATE, LOOKUP = "generate", "prompt lookup (generate)"
AUTOREGRESSIVE, OWN_LOOKUP = "autoregressive", "prompt lookup (engine)"
RESD, STRICT, RELAXED = "resd", "dare strict", "dare relaxed"
METHODS = (GENERATE, LOOKUP, AUTOREGRESSIVE, OWN_LOOKUP, RESD, STRICT, RELAXED)


@dataclass(frozen=True)
class Budget:
    """Limits of decoding.

    Attributes
    ----------
    batch
        Rows decoded together.
    nodes
        Draft tokens per row.
    tokens
        Maximum number of new tokens per row.
    threads
        Torch threads.
    curves
        Folder of latency curves for a draft budget of at most ``nodes`` per row; None: always ``nodes``.
    repetition_penalty
        As in ``EngineSettings``.
    """

    batch: int
    nodes: int
    tokens: int
    threads: int
    curves: Path | None = None
    repetition_penalty: float | None = None


class Learned:
    """What the runs of one method and batch size learn about previous texts and the value of drafts."""

    def __init__(self, method: str, target: Target, budget: Budget):
        self.reuse, self.draft_budget = ReuseEstimator(), None
        if budget.curves and method in (OWN_LOOKUP, RESD, STRICT, RELAXED):
            curve = latency_probe.load_or_measure(target, _settings(method, budget), budget.curves)
            self.draft_budget = AdaptiveBudget(curve, budget.nodes, target.round_up)


def possible(method: str, batch: int) -> bool:
    """Whether a method works at this batch size: prompt lookup in ``generate`` takes one row at a time."""
    return method != LOOKUP or batch == 1


def run_method(method: str, target: Target, requests: Sequence[Request], budget: Budget,
               learned: Learned) -> Measured:
    """Generate the rows once.

    Parameters
    ----------
    requests
        With everything that ``dare`` drafts from: the row's own previous text, and the pool of all as the
        last one.
    """
    requests = sorted(requests, key=lambda request: len(request.prompt_ids))
    if method in (GENERATE, LOOKUP):
        return by_generate(target, requests, budget.batch, budget.tokens, method == LOOKUP,
                           budget.repetition_penalty)
    drafter = None
    if method != AUTOREGRESSIVE:
        drafter = RetrievalDrafter(DraftSettings(threads=budget.threads))
    engine = Engine(target, _settings(method, budget), drafter, learned.reuse, learned.draft_budget)
    return generate_once(engine, [_with_drafts(method, request) for request in requests])


def _settings(method: str, budget: Budget) -> EngineSettings:
    return EngineSettings(
        rule="relaxed" if method == RELAXED else "strict", max_new_tokens=budget.tokens,
        batch_size=budget.batch, repetition_penalty=budget.repetition_penalty,
        nodes=0 if method == AUTOREGRESSIVE else budget.nodes,
        score="auto" if method in (STRICT, RELAXED) else "never")


def _with_drafts(method: str, request: Request) -> Request:
    """The request with what the method drafts from."""
    if method in (STRICT, RELAXED):
        return request
    return replace(request, pools=request.pools[-1:] if method == RESD else (), previous_ids=None)


ByMethod = dict[tuple[str, int], Measured]  # by method and batch size
STRICT_OVER_GENERATE = {1: 2.2, 8: 1.8, 32: 1.2}  # at least, by batch size
RELAXED_OVER_STRICT = {1: 1.2}
DISTINCT, LIKENESS = 0.95, 0.2  # share of distinct texts; difference of replay acceptance
OVER_BASELINE = 0.98  # every method of the engine, at every batch size


def row(measured: ByMethod, method: str, batch: int) -> dict:
    """A row of the table and of the JSON object."""
    each = measured[method, batch]
    rates = {name: measured[name, batch].tokens_per_s for name in (GENERATE, AUTOREGRESSIVE)}
    return {"method": method, "batch": batch, "tokens_per_s": round(each.tokens_per_s, 1),
            "accepted_per_step": round(each.accepted / max(1, each.steps), 3), "target_steps": each.steps,
            "ratio_to_generate": round(each.tokens_per_s / rates[GENERATE], 3),
            "ratio_by_processor": round(each.tokens_per_s_of_processor
                                        / measured[GENERATE, batch].tokens_per_s_of_processor, 3),
            "ratio_to_baseline": round(each.tokens_per_s / max(rates.values()), 3),
            "ceiling_to_baseline": round(measured[AUTOREGRESSIVE, batch].steps / max(1, each.steps), 3),
            "scored_share": round(each.scored / each.tokens, 4),
            "relaxed_share": round(each.relaxed / each.tokens, 4)}


def differing(measured: ByMethod) -> int:
    """Rows whose text differs from ``generate``'s in some repeat of a strict method: ties of two logits.

    The reference is ``generate`` at the smallest batch size; its prompt lookup is not compared.
    """
    expected = measured[GENERATE, min(batch for _, batch in measured)].texts[0]
    strict = [texts for (method, _), each in measured.items() if method not in (LOOKUP, RELAXED)
              for texts in each.texts]
    return sum(any(not np.array_equal(texts[key], expected[key]) for texts in strict) for key in expected)


def targets(rows: list[dict], likeness: dict) -> list[dict]:
    """Target, bound, measured value, and whether the target is met."""
    by = {(each["method"], each["batch"]): each for each in rows}
    difference = abs(likeness["accepted_ratio"] - 1)
    held = [target_row("distinct texts, at least", DISTINCT, likeness["distinct"],
                       likeness["distinct"] >= DISTINCT),
            target_row("replay acceptance off recorded profiles', at most", LIKENESS, difference,
                       difference <= LIKENESS)]
    for batch in dict.fromkeys(each["batch"] for each in rows):
        ratios = [("dare strict over generate", STRICT_OVER_GENERATE.get(batch),
                   by[STRICT, batch]["ratio_to_generate"]),
                  ("relaxed over strict", RELAXED_OVER_STRICT.get(batch),
                   by[RELAXED, batch]["tokens_per_s"] / by[STRICT, batch]["tokens_per_s"])]
        ratios += [(f"{each['method']} over baseline", OVER_BASELINE, each["ratio_to_baseline"])
                   for each in rows if each["batch"] == batch and each["method"] not in (GENERATE, LOOKUP)]
        held += [target_row(f"batch {batch}: {name}, at least", bound, ratio, ratio >= bound)
                 for name, bound, ratio in ratios if bound is not None]
    return held
