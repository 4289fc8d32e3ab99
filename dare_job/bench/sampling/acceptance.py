"""Acceptance by level and number of candidates, measured with a few trees."""

import logging
from dataclasses import dataclass

import numpy as np

from dare_job.bench.sampling.measure import Measured, Method, generate_rows
from dare_job.bench.sampling.world import World
from dare_job.decode.draft.sampled_tree import TreeShape
from dare_job.errors import ConfigError

PROBES = ("1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1", "2x2x2x2", "4x4", "8x2", "16", "32")
QUICK_PROBES = ("1x1x1", "2x2", "4")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Acceptance:
    """Acceptance rates of a draft model.

    Attributes
    ----------
    rates : float64 (levels, candidates)
        For the search, see ``table``.
    first
        Measured rate of the first level by number of candidates.
    steps
        Number of steps on which ``first`` was measured, by number of candidates.
    """

    rates: np.ndarray
    first: dict[int, float]
    steps: dict[int, int]


def measure(world: World, drafter: str, temperature: float, tokens: int, probes: tuple[str, ...],
            levels: int) -> Acceptance:
    """Run every probe without replacement, verified by rrs.

    Raises
    ------
    ConfigError
        No text takes two steps with the tree of a probe.
    ModelError
        A row fails.
    """
    rates: dict[tuple[int, int], float] = {}
    first, steps = {}, {}
    for probe in probes:
        widths = TreeShape.parse(probe).widths
        measured = generate_rows(world, Method(probe, drafter, widths), temperature, tokens)
        add(rates, widths, measured)
        if (1, widths[0]) not in rates:
            raise ConfigError(f"--tokens {tokens}: no text took two steps of the tree {probe}, from which "
                              "acceptance is measured; give more tokens or --rows")
        first[widths[0]], steps[widths[0]] = rates[1, widths[0]], len(measured.step_tokens)
        _LOG.info("temperature %g, drafter %s, %s: %.3f tokens per step, %.3f accepted on level 1",
                  temperature, drafter, probe, measured.per_step, first[widths[0]])
    return Acceptance(table(rates, levels), first, steps)


def add(rates: dict[tuple[int, int], float], widths: tuple[int, ...], measured: Measured) -> None:
    """Add rates by (level, candidates), each given that the levels above accepted; the first one stays."""
    for level, (width, rate) in enumerate(zip(widths, measured.rates(len(widths)), strict=True), 1):
        if np.isfinite(rate):
            rates.setdefault((level, width), float(rate))


def table(measured: dict[tuple[int, int], float], levels: int) -> np.ndarray:
    """float64 (levels, candidates): rates of every level for every number of candidates up to the maximum.

    One candidate must be measured on level 1; deeper levels without a measurement are as the last one with
    one. Of the failures of one candidate, n candidates remove the share that they removed on the deepest
    level where they were measured, so that no level looks better for having been measured less. Other
    numbers of candidates are interpolated, and a rate that falls with more candidates, which is sampling
    noise, is raised to the one before.
    """
    widths = sorted({width for _, width in measured})
    rates = np.zeros((levels, widths[-1]))
    alone = [measured[1, 1]]
    for level in range(2, levels + 1):
        alone.append(measured.get((level, 1), alone[-1]))
    left = dict.fromkeys(widths, 1.0)  # share of one candidate's failures
    for level, single in enumerate(alone, 1):
        for width in widths[1:]:
            if (level, width) in measured and single < 1:
                left[width] = (1 - measured[level, width]) / (1 - single)
        line = [np.clip(1 - (1 - single) * left[width], 0, 1) for width in widths]
        rates[level - 1] = np.maximum.accumulate(np.interp(np.arange(1, widths[-1] + 1), widths, line))
    return rates
