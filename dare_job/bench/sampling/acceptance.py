"""Measured acceptance by level and number of candidates, from runs of a few trees."""

import logging
from dataclasses import dataclass

import numpy as np

from dare_job.bench.sampling.measure import Measured, Method, once
from dare_job.bench.sampling.world import World
from dare_job.decode.draft.shape import Shape

# Level j is measured where those before it passed; deeper levels are taken to be as the last measured.
PROBES = ("1x1x1x1x1x1", "2x2x2x2", "4x4", "8x2", "16", "32")
QUICK_PROBES = ("1x1x1", "2x2", "4")
_LOG = logging.getLogger(__name__)


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
        widths = Shape.parse(probe).widths
        seen = once(world, Method(probe, drafter, widths), temperature, tokens)
        add(found, widths, seen)
        first[widths[0]], steps[widths[0]] = found[1, widths[0]], len(seen.step_tokens)
        _LOG.info("temperature %g, drafter %s, %s: %.3f tokens a step, %.3f accepted on level 1", temperature,
                  drafter, probe, seen.per_step, first[widths[0]])
    return Acceptance(table(found, levels), first, steps)


def add(found: dict[tuple[int, int], float], widths: tuple[int, ...], seen: Measured) -> None:
    """Note the rates by (level, candidates); of several for one, the first stays."""
    for level, (width, rate) in enumerate(zip(widths, seen.rates(len(widths)), strict=True), 1):
        if np.isfinite(rate):
            found.setdefault((level, width), float(rate))


def table(found: dict[tuple[int, int], float], levels: int) -> np.ndarray:
    """float64 (levels, candidates): rates of every level for every number of candidates up to the most.

    Between measured numbers of candidates on a line. A level that was not measured for a number has the rate
    of the level above it; one that falls where candidates are added, which is chance, stays level.
    """
    most = max(width for _, width in found)
    rates = np.zeros((levels, most))
    for level in range(1, levels + 1):
        known = {width: rate for (on, width), rate in found.items() if on == level}
        if level > 1:  # as the level above, for what was measured there alone
            above = {width: rates[level - 2, width - 1] for _, width in found}
            known = above | known
        widths = sorted(known)
        line = np.interp(np.arange(1, most + 1), widths, [known[width] for width in widths])
        rates[level - 1] = np.maximum.accumulate(line)
    return rates
