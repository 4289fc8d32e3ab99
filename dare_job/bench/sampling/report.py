"""The bench's figures: lines of the tables, what they are held against, and how they are printed.

Measured acceptance by level and number of candidates, from runs of a few trees.

Acceptance on the first level by number of candidates, before and after distillation, as an SVG.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from dare_job.bench import reports
from dare_job.bench.sampling import curve
from dare_job.bench.sampling.measure import PLAIN, RETRIEVAL, Measured, Method, once
from dare_job.bench.sampling.world import BATCH, World
from dare_job.decode.draft.sampled_tree import TreeShape
from dare_job.errors import ConfigError
from dare_job.publish.report.plot import Line, Panel, document, doubling

PROBES = ("1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1", "2x2x2x2", "4x4", "8x2", "16", "32")
QUICK_PROBES = ("1x1x1", "2x2", "4")
_LOG = logging.getLogger(__name__)
SD_SAME, SD_BEST, BEST = "SD (same depth)", "SD (best depth)", "MCSD (best tree)"
HERE = "MCSD (best tree for this machine)"
PATHS = "without tree attention"
ABLATION = (("MCSS with replacement", "iid", "mcss"), ("naive", "without_replacement", "naive"),
            ("K-SEQ", "iid", "k_seq"), ("greedy multi-draft", "greedy", "greedy"),
            ("traversal", "without_replacement", "traversal"))
_HIDDEN, _LIMITS = ("law", "steps", "tokens"), (2, 4, 8, 16, 24, 32, 64)
FORWARDS, SPEED, AT = 2.0, 1.8, 1.0  # at least, at this temperature, with the distilled drafter
LOST = 0.01  # share of tokens; rates are measured to about as much
_COLOURS = ("#1f6fb2", "#2b8a3e", "#b2551f", "#7a3fa0", "#555555", "#b0263a")
_TITLES = {"after": "distilled on the target's own texts", "before": "before distillation"}


@dataclass(frozen=True)
class Acceptance:
    """rates  float64 (levels, candidates): for the search, see ``table``
    first     {candidates: rate of the first level}, as measured
    steps     {candidates: steps that this was measured on}
    """

    rates: np.ndarray
    first: dict[int, float]
    steps: dict[int, int]


def measured(world: World, drafter: str, temperature: float, tokens: int, probes: tuple[str, ...],
             levels: int) -> Acceptance:
    """Runs of every probe with draws without replacement, verified by rrs."""
    found: dict[tuple[int, int], float] = {}
    first, steps = {}, {}
    for probe in probes:
        widths = TreeShape.parse(probe).widths
        seen = once(world, Method(probe, drafter, widths), temperature, tokens)
        add(found, widths, seen)
        if (1, widths[0]) not in found:
            raise ConfigError(f"--tokens {tokens}: no text took two steps of the tree {probe}, from which "
                              "acceptance is measured; give more tokens or --rows")
        first[widths[0]], steps[widths[0]] = found[1, widths[0]], len(seen.step_tokens)
        _LOG.info("temperature %g, drafter %s, %s: %.3f tokens a step, %.3f accepted on level 1", temperature,
                  drafter, probe, seen.per_step, first[widths[0]])
    return Acceptance(table(found, levels), first, steps)


def add(found: dict[tuple[int, int], float], widths: tuple[int, ...], seen: Measured) -> None:
    """Note the rates by (level, candidates), each where the levels before passed; the first one stays."""
    for level, (width, rate) in enumerate(zip(widths, seen.rates(len(widths)), strict=True), 1):
        if np.isfinite(rate):
            found.setdefault((level, width), float(rate))


def table(found: dict[tuple[int, int], float], levels: int) -> np.ndarray:
    """float64 (levels, candidates): rates of every level for every number of candidates up to the most.

    One candidate must be measured on level 1; deeper levels where it was not are as the last one. Of what one
    candidate fails on a level, n more remove the share that they removed on the deepest level where they were
    measured, so that no level looks better for having been measured less. Numbers between are on a line, and
    a rate that falls where candidates are added, which is chance, stays level.
    """
    widths = sorted({width for _, width in found})
    rates = np.zeros((levels, widths[-1]))
    alone = [found[1, 1]]
    for level in range(2, levels + 1):
        alone.append(found.get((level, 1), alone[-1]))
    left = dict.fromkeys(widths, 1.0)  # share of one candidate's failures
    for level, single in enumerate(alone, 1):
        for width in widths[1:]:
            if (level, width) in found and single < 1:
                left[width] = (1 - found[level, width]) / (1 - single)
        line = [np.clip(1 - (1 - single) * left[width], 0, 1) for width in widths]
        rates[level - 1] = np.maximum.accumulate(np.interp(np.arange(1, widths[-1] + 1), widths, line))
    return rates


def line(temperature: float, method: Method, found: dict[str, Measured], expected: float | None) -> dict:
    """Of one method at one temperature; expected: the search's tokens a step. error: standard
    error of the block efficiency, as if steps were independent.

    fewer_forwards  target forwards of plain sampling over the method's, prompts' included, for as many tokens
    """
    seen, plain = found[method.name], found[PLAIN]
    retrieved = method.drafter == RETRIEVAL
    law, rule = ("top_k", "naive") if retrieved else (method.law, method.rule)
    return {"temperature": temperature, "method": method.name, "drafter": method.drafter,
            "tree": "x".join(map(str, method.widths)), "nodes": method.size,
            "law": "" if method.drafter == "none" else law,
            "rule": "" if method.drafter == "none" else "strict" if temperature == 0 else rule,
            "steps": seen.steps, "tokens": seen.tokens, "block_efficiency": round(seen.per_step, 3),
            "error": round(seen.error, 3),
            "expected": None if expected is None else round(expected, 3),
            "fewer_forwards": round(seen.per_forward / plain.per_forward, 3),
            "target_tokens": method.target_tokens, "tokens_per_s": round(seen.tokens_per_s, 1),
            "ratio_to_plain": round(seen.tokens_per_s / plain.tokens_per_s, 3),
            "ratio_by_processor": round(seen.tokens_per_s_of_processor / plain.tokens_per_s_of_processor, 3),
            "memory_bound": round(_memory_bound(seen.per_step, method), 3),
            "joules_per_token": None if seen.joules is None else round(seen.joules / seen.tokens, 4)}


def _memory_bound(tokens: float, method: Method) -> float:
    if method.paths:
        return curve.paths_speed_up(tokens, method.widths)
    return curve.speed_up(tokens, method.widths, method.size)


def acceptance(temperature: float, drafter: str, found: Acceptance) -> list[dict]:
    """A line for each number of candidates that was measured; rates of the first level."""
    return [{"temperature": temperature, "drafter": drafter, "candidates": count, "rate": round(rate, 4),
             "error": round(math.sqrt(rate * (1 - rate) / max(1, found.steps[count])), 4)}
            for count, rate in sorted(found.first.items())]


def targets(rows: list[dict], limits: list[dict], device: str) -> list[dict]:
    """What lines are held against: target, bound, what was measured, whether that meets it, and whether it
    must (``missed``): the paper's monotonic rule need not hold. The clock is a GPU's alone: on a processor
    a forward costs by its tokens.
    """
    best = [row for row in rows if row["temperature"] == AT and row["method"] == BEST]
    speeds = [("fewer target forwards", "fewer_forwards", FORWARDS),
              ("speed-up where memory bounds steps", "memory_bound", SPEED)]
    if device == "cuda":
        speeds.append(("speed-up in wall-clock time", "ratio_to_plain", SPEED))
    found = [{"target": f"temperature {AT:g}: {what}, at least", "bound": bound, "measured": row[key],
              "met": row[key] >= bound, "must": True} for row in best
             for what, key, bound in speeds]
    lost = max((one["lost"] for one in limits), default=0.0)
    return [*found, {"target": "what the best narrowing tree loses to the best, at any node limit, at most",
                     "bound": LOST, "measured": lost, "met": lost <= LOST, "must": False}]


def missed(held: list[dict]) -> str | None:
    """What to say of the targets that must be met and are not; None where all are."""
    return "; ".join(f"{one['target']} {one['bound']}: {one['measured']}" for one in held
                     if one["must"] and not one["met"]) or None


def show(rows: list[dict], found: dict, held: list[dict]) -> None:
    """Print the tables, what was held against, and what the columns mean."""
    console = Console(width=210)
    limits = [one for one in found["orders"] if one["nodes"] in _LIMITS]
    shown = [{key: value for key, value in row.items() if key not in _HIDDEN} for row in rows]
    for title, lines in (("entropy of the target, nats a token of its own texts", found["entropy"]),
                         ("accepted on the first level, by candidates", found["acceptance"]),
                         ("best trees by node limit: of all, that narrow, that get wider", limits),
                         ("ways of sampling", shown)):
        console.print(reports.table(lines, title=title, spaced=True))
    for name, each in found["forward_ms"].items():
        times = ", ".join(f"{queries}: {ms}" for queries, ms in each.items())
        console.print(f"{name} here, milliseconds of a forward of {BATCH} rows by queries a row: {times}")
    reports.show_targets(console, held)
    console.print("block efficiency: tokens a step; expected: by the search; memory bound: speed-up if steps "
                  f"cost {curve.ABOUT}, {BATCH} rows together")


def draw(acceptance: Sequence[dict]) -> str:
    """Of the bench's lines ``acceptance``: a panel for each draft model, a line for each temperature, as in
    figures 3 and 5 of MCSD (arXiv 2401.06706), whose panels are of two draft models.
    """
    warm = list(dict.fromkeys(one["temperature"] for one in acceptance))
    panels = []
    for drafter, title in _TITLES.items():
        lines = []
        for number, value in enumerate(warm):
            points = sorted((one["candidates"], one["rate"]) for one in acceptance
                            if (one["drafter"], one["temperature"]) == (drafter, value))
            lines.append(Line(f"temperature {value:g}", _COLOURS[number % len(_COLOURS)], "", points))
        panels.append(Panel(f"Acceptance rate over candidates: draft model {title}", lines, x=doubling))
    return document("How often one of k candidates is accepted, by temperature, for a draft model before and "
                    "after distillation", panels)
