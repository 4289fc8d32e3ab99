"""The ways of decoding that are compared: each writes the same rows once and says what that took.

The bench's figures: one line for each method and batch size, and the table of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from dare_job.bench import reports
from dare_job.bench.measured import Measured, run, timed
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine import latency_probe
from dare_job.decode.engine.draft_budget import DraftBudget
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.generate import baseline
from pools.draft import DraftSettings

GENERATE, LOOKUP = "generate", "prompt lookup (generate)"
AUTOREGRESSIVE, OWN_LOOKUP = "autoregressive", "prompt lookup (engine)"
RESD, STRICT, RELAXED = "resd", "dare strict", "dare relaxed"
METHODS = (GENERATE, LOOKUP, AUTOREGRESSIVE, OWN_LOOKUP, RESD, STRICT, RELAXED)
LOOKUP_TOKENS = 10  # that transformers drafts a step, as its documentation advises


@dataclass(frozen=True)
class Budget:
    """Rows decoded together, draft nodes a row, new tokens a row at most, torch threads.

    curves  folder of what steps cost, by which a scheduler gives at most ``nodes`` to each row; None: each
            row has as many
    """

    batch: int
    nodes: int
    tokens: int
    threads: int
    curves: Path | None = None


class Learned:
    """What the runs of one method and batch size have seen: of old text, and of drafts' worth."""

    def __init__(self, method: str, target: Target, budget: Budget):
        self.scoring, self.scheduler = ReuseEstimator(), None
        if budget.curves and method in (OWN_LOOKUP, RESD, STRICT, RELAXED):
            curve = latency_probe.load_or_measure(target, _settings(method, budget), budget.curves)
            self.scheduler = DraftBudget(curve, budget.nodes)


def possible(method: str, batch: int) -> bool:
    """Whether a method works at this batch size: prompt lookup in ``generate`` takes one row at a time."""
    return method != LOOKUP or batch == 1


def once(method: str, target: Target, requests: Sequence[Request], budget: Budget,
         learned: Learned) -> Measured:
    """Write the rows once.

    requests  with all that ``dare`` drafts from: the row's own old text, and the others' pool as the last
    """
    requests = sorted(requests, key=lambda request: len(request.prompt_ids))
    if method in (GENERATE, LOOKUP):
        return _by_generate(method, target, requests, budget)
    return run(_engine(method, target, budget, learned), [_asked(method, request) for request in requests])


def _by_generate(method: str, target: Target, requests: Sequence[Request], budget: Budget) -> Measured:
    options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if method == LOOKUP else {}
    calls = 0

    def count(*_) -> None:
        nonlocal calls
        calls += 1

    handle = target.model.register_forward_pre_hook(count)
    written, times = timed(lambda: baseline.generate_greedy(target, requests, budget.batch, budget.tokens,
                                                            **options))
    handle.remove()
    tokens = sum(map(len, written))
    texts = {request.id: text for request, text in zip(requests, written, strict=True)}
    if method == LOOKUP:  # one row at a time: a call is a row's forward, which writes one token of its own
        return Measured(tokens, calls - len(requests), tokens - calls, texts=[texts], **times)
    return Measured(tokens, tokens - len(requests), 0, texts=[texts], **times)


def _engine(method: str, target: Target, budget: Budget, learned: Learned) -> Engine:
    plain = method == AUTOREGRESSIVE
    drafter = None if plain else RetrievalDrafter(DraftSettings(threads=budget.threads))
    return Engine(target, _settings(method, budget), drafter, learned.scoring, learned.scheduler)


def _settings(method: str, budget: Budget) -> EngineSettings:
    return EngineSettings(
        rule="relaxed" if method == RELAXED else "strict", max_new_tokens=budget.tokens,
        batch_size=budget.batch, nodes=0 if method == AUTOREGRESSIVE else budget.nodes,
        score="auto" if method in (STRICT, RELAXED) else "never")


def _asked(method: str, request: Request) -> Request:
    """The request with what the method drafts from."""
    if method in (STRICT, RELAXED):
        return request
    return replace(request, pools=request.pools[-1:] if method == RESD else (), previous_ids=None)

Found = dict[tuple[str, int], Measured]  # by method and batch size
_BELOW = ("plain: the faster of generate and autoregressive; accepted_per_step: without the model's own; "
          "ratio_by_processor: to generate, by processor time; ceiling_to_plain: were a tree's forward as "
          "quick as one token's, and nothing else took time")
STRICT_OVER_GENERATE = {1: 2.2, 8: 1.8, 32: 1.2}  # at least, by batch size
RELAXED_OVER_STRICT = {1: 1.2}
DISTINCT, LIKENESS = 0.95, 0.2  # share of distinct texts at least; replay acceptance off the recorded one's
OVER_PLAIN = 0.98  # every way of the engine, at every batch size


def line(found: Found, method: str, batch: int) -> dict:
    """A line of the table and of the JSON object."""
    seen = found[method, batch]
    rate = {name: found[name, batch].tokens_per_s for name in (GENERATE, AUTOREGRESSIVE)}
    return {"method": method, "batch": batch, "tokens_per_s": round(seen.tokens_per_s, 1),
            "accepted_per_step": round(seen.accepted / max(1, seen.steps), 3), "target_steps": seen.steps,
            "ratio_to_generate": round(seen.tokens_per_s / rate[GENERATE], 3),
            "ratio_by_processor": round(seen.tokens_per_s_of_processor
                                        / found[GENERATE, batch].tokens_per_s_of_processor, 3),
            "ratio_to_plain": round(seen.tokens_per_s / max(rate.values()), 3),
            "ceiling_to_plain": round(found[AUTOREGRESSIVE, batch].steps / max(1, seen.steps), 3),
            "scored_share": round(seen.scored / seen.tokens, 4),
            "relaxed_share": round(seen.relaxed / seen.tokens, 4)}


def differing(found: Found) -> int:
    """Rows whose text is another than ``generate``'s in some repeat of a strict method: ties of two logits.

    ``generate`` at the smallest batch size is right; its prompt lookup is not the engine's to answer for.
    """
    expected = found[GENERATE, min(batch for _, batch in found)].texts[0]
    written = [texts for (method, _), seen in found.items() if method not in (LOOKUP, RELAXED)
               for texts in seen.texts]
    return sum(any(not np.array_equal(texts[row], expected[row]) for texts in written) for row in expected)


def targets(rows: list[dict], likeness: dict) -> list[dict]:
    """What lines and texts are held against: target, bound, what was measured, and whether that meets it."""
    by = {(row["method"], row["batch"]): row for row in rows}
    off = abs(likeness["accepted_ratio"] - 1)
    found = [{"target": "distinct texts, at least", "bound": DISTINCT, "measured": likeness["distinct"],
              "met": likeness["distinct"] >= DISTINCT},
             {"target": "replay acceptance off recorded profiles', at most", "bound": LIKENESS,
              "measured": round(off, 3), "met": off <= LIKENESS}]
    for batch in dict.fromkeys(row["batch"] for row in rows):
        held = [("dare strict over generate", STRICT_OVER_GENERATE.get(batch),
                 by[STRICT, batch]["ratio_to_generate"]),
                ("relaxed over strict", RELAXED_OVER_STRICT.get(batch),
                 by[RELAXED, batch]["tokens_per_s"] / by[STRICT, batch]["tokens_per_s"])]
        held += [(f"{row['method']} over plain", OVER_PLAIN, row["ratio_to_plain"]) for row in rows
                 if row["batch"] == batch and row["method"] not in (GENERATE, LOOKUP)]
        found += [{"target": f"batch {batch}: {what}, at least", "bound": bound, "measured": round(value, 3),
                   "met": bool(value >= bound)} for what, bound, value in held if bound is not None]
    return found


def show(rows: list[dict], likeness: dict, settings: str) -> None:
    """Print the table, relaxed over strict, targets, and how like recorded profiles the texts are.

    likeness  of ``night.likeness``; settings: of the run, in words
    """
    console = Console(width=170)
    console.print(reports.table(rows, ends=lambda row: row["method"] == RELAXED))
    by = {(row["method"], row["batch"]): row for row in rows}
    for batch in dict.fromkeys(row["batch"] for row in rows):
        clock, processor = (by[RELAXED, batch][name] / by[STRICT, batch][name]
                            for name in ("tokens_per_s", "ratio_by_processor"))
        console.print(f"batch {batch}: relaxed over strict {clock:.3f}, by processor time {processor:.3f}")
    reports.show_targets(console, targets(rows, likeness))
    console.print(f"{settings}; {_BELOW}")
    console.print("texts (and recorded profiles): {distinct:.1%} ({distinct_real:.1%}) distinct; replayed at "
                  "16 nodes {accepted:.2f} ({accepted_real:.2f}) accepted, {accepted_ratio:.3f} times; "
                  "{tokens:.0f} ({tokens_real:.0f}) tokens, median".format(**likeness))
