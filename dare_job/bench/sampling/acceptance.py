"""Measured acceptance by level and number of candidates, from runs of a few trees."""

import logging
from dataclasses import dataclass

import numpy as np

from dare_job.bench.sampling.measure import Measured, Method, once
from dare_job.bench.sampling.world import World
from dare_job.decode.draft.shape import Shape
from dare_job.errors import ConfigError

PROBES = ("1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1", "2x2x2x2", "4x4", "8x2", "16", "32")
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
