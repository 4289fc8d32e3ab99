"""Acceptance rates of every rule and optima of every draft distribution, by position and temperature."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from dare_job.decode.sampling.distributions import DISTRIBUTIONS
from dare_job.decode.sampling.rules import RULES
from dare_job.decode.sampling.warp import warp
from dare_job.decode.settings import Warp
from dare_job.evaluate.acceptance.optimum import optimum
from dare_job.evaluate.acceptance.rates import rate
from dare_job.evaluate.acceptance.texts import Positions
from dare_job.observe import progress

_ALIASES = ("mcss",)  # other names of a rule
_Z_95 = 1.96  # half-width of a 95 % confidence interval in standard errors


@dataclass
class Cell:
    """One draft distribution with n candidates at one temperature, measured at N positions.

    Attributes
    ----------
    texts
        Text of each position.
    optima
        Optimum at each position.
    rates
        Rates at each position, by rule.
    estimated
        Rules whose rate was estimated rather than computed at some position.
    """

    temperature: float
    distribution: str
    drafts: int
    texts: list[int] = field(default_factory=list)
    optima: list[float] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    estimated: set[str] = field(default_factory=set)


def cells(temperatures: Sequence[float], drafts: Sequence[int]) -> list[Cell]:
    """Return cells for every distribution and every number of candidates that it is defined for."""
    return [
        Cell(temperature, distribution.name, n, rates={rule: [] for rule in verifiers(distribution.name, n)})
        for temperature in temperatures
        for n in drafts
        for distribution in DISTRIBUTIONS.values()
        if distribution.count in (None, n)
    ]


def verifiers(distribution: str, n: int) -> list[str]:
    """Return the rules that are exact for n candidates of a distribution."""
    return [rule.name for rule in RULES.values()
            if distribution in rule.distributions and rule.count in (None, n) and rule.name not in _ALIASES]


def fill(cells: Sequence[Cell], positions: Iterable[Positions], total: int, samples: int, seed: int) -> None:
    """Add every position to every cell; ``samples`` and ``seed`` are for rates that must be estimated."""
    done = 0
    with progress.counting("acceptance rates", total, unit="positions") as counter:
        for part in positions:
            for target, draft in zip(part.target, part.draft, strict=True):
                pairs = {temperature: pair(target, draft, temperature)
                         for temperature in dict.fromkeys(cell.temperature for cell in cells)}
                for cell in cells:
                    _add(cell, part.text, *pairs[cell.temperature], samples, seed + done)
                done += 1
                counter.advance()


def pair(target: torch.Tensor, draft: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return p and q float64 (W,) from logits (V,), with all tokens outside the support of q merged into one.

    No rule distinguishes tokens that are never drafted, and at low temperatures few tokens can be drafted.
    """
    settings = Warp(temperature)
    p, q = (warp(logits[None], settings)[0][0].double() for logits in (target, draft))
    drafted = q > 0
    rest = p[~drafted].sum()[None]
    return torch.cat((p[drafted], rest)), torch.cat((q[drafted], torch.zeros_like(rest)))


def _add(cell: Cell, text: int, p: torch.Tensor, q: torch.Tensor, samples: int, seed: int) -> None:
    cell.texts.append(text)
    cell.optima.append(optimum(cell.distribution, p, q, cell.drafts))
    for rule, cell_rates in cell.rates.items():
        rule_rate = rate(rule, cell.distribution, p, q, cell.drafts, samples, seed)
        cell_rates.append(rule_rate.value)
        if not rule_rate.exact:
            cell.estimated.add(rule)


def mean(values: Sequence[float], texts: Sequence[int]) -> tuple[float, float]:
    """Return the mean over positions and its standard error; positions of one text count as dependent.

    The positions of a single text are treated as independent. The error of a single position is NaN.
    """
    x, groups_of = np.asarray(values), np.asarray(texts)
    if len(np.unique(groups_of)) == 1:
        groups_of = np.arange(len(x))
    sums = np.bincount(np.unique(groups_of, return_inverse=True)[1], x - x.mean())
    groups = len(sums)
    if groups == 1:
        return float(x.mean()), math.nan
    return float(x.mean()), float(np.sqrt(groups / (groups - 1) * (sums**2).sum()) / len(x))


def lines(cells: Sequence[Cell]) -> list[dict]:
    """Return one record per rule and cell: rate, optimum, gap and difference from the baseline, with 95 %
    intervals.

    The baseline is recursive rejection without replacement at the same positions.
    """
    baseline = {(cell.temperature, cell.drafts): cell.rates["rrs"] for cell in cells
             if cell.distribution == "without_replacement"}
    return [line for cell in cells for line in _lines(cell, baseline[cell.temperature, cell.drafts])]


def _lines(cell: Cell, baseline: list[float]) -> list[dict]:
    lines = []
    for rule, values in cell.rates.items():
        gap, over_baseline = np.subtract(cell.optima, values), np.subtract(values, baseline)
        line = {"distribution": cell.distribution, "verifier": rule, "drafts": cell.drafts,
                "temperature": cell.temperature}
        means = {"rate": values, "optimum": cell.optima, "gap": gap, "over_rrs": over_baseline}
        for name, values_of in means.items():
            average, error = mean(values_of, cell.texts)
            ends = [average - _Z_95 * error, average + _Z_95 * error]
            line |= {name: average, f"{name}_interval": None if math.isnan(error) else ends}
        lines.append(line | {"exact": rule not in cell.estimated})
    return lines
