"""Rates of every verifier and the optimum of every law, over places and temperatures."""

import logging
import math
import time
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
from dare_job.evaluate.acceptance.texts import Places

_ALIASES = ("mcss",)  # rules that are another by name
_Z_95 = 1.96  # standard errors of an interval of 95 %
_LOG_EVERY_S = 10.0
_LOG = logging.getLogger("dare_job")


@dataclass
class Cell:
    """A law with n candidates at one temperature: at N places, by text.

    optima, rates  floats of the places, the latter by verifier; estimated: verifiers whose rate was estimated
                   at some place
    """

    temperature: float
    law: str
    drafts: int
    texts: list[int] = field(default_factory=list)
    optima: list[float] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    estimated: set[str] = field(default_factory=set)


def cells(temperatures: Sequence[float], drafts: Sequence[int]) -> list[Cell]:
    """Every law with every number of candidates that it is defined for."""
    return [
        Cell(temperature, law.name, n, rates={rule: [] for rule in verifiers(law.name, n)})
        for temperature in temperatures
        for n in drafts
        for law in DISTRIBUTIONS.values()
        if law.count in (None, n)
    ]


def verifiers(law: str, n: int) -> list[str]:
    """The rules that are exact for n candidates of a law."""
    return [rule.name for rule in RULES.values()
            if law in rule.distributions and rule.count in (None, n) and rule.name not in _ALIASES]


def fill(found: Sequence[Cell], places: Iterable[Places], total: int, draws: int, seed: int) -> None:
    """Add every place to every cell; ``total`` places are announced. draws, seed: of what is estimated."""
    done, began = 0, time.monotonic()
    told = began
    for part in places:
        for target, draft in zip(part.target, part.draft, strict=True):
            laws = {}
            for cell in found:
                if cell.temperature not in laws:
                    laws[cell.temperature] = pair(target, draft, cell.temperature)
                _add(cell, part.text, *laws[cell.temperature], draws, seed + done)
            done += 1
            if time.monotonic() - told > _LOG_EVERY_S:
                told = time.monotonic()
                _LOG.info("rates: %d of %d places, %.0f s, %.0f s left", done, total, told - began,
                          (told - began) / done * (total - done))


def pair(target: torch.Tensor, draft: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """p and q float64 (W,) of logits (V,): of the tokens that may be drafted, and of all others as one.

    No rule tells tokens apart that are never drafted, and at low temperatures few are.
    """
    settings = Warp(temperature)
    p, q = (warp(logits[None], settings)[0][0].double() for logits in (target, draft))
    drafted = q > 0
    others = p[~drafted].sum()[None]
    return torch.cat((p[drafted], others)), torch.cat((q[drafted], torch.zeros_like(others)))


def _add(cell: Cell, text: int, p: torch.Tensor, q: torch.Tensor, draws: int, seed: int) -> None:
    cell.texts.append(text)
    cell.optima.append(optimum(cell.law, p, q, cell.drafts))
    for rule, known in cell.rates.items():
        found = rate(rule, cell.law, p, q, cell.drafts, draws, seed)
        known.append(found.value)
        if not found.exact:
            cell.estimated.add(rule)


def mean(values: Sequence[float], texts: Sequence[int]) -> tuple[float, float]:
    """Mean of places and its standard error, in which places of a text count as dependent.

    Of one text alone they count as independent: there is nothing else to judge by. One place: error NaN.
    """
    x, of = np.asarray(values), np.asarray(texts)
    if len(np.unique(of)) == 1:
        of = np.arange(len(x))
    sums = np.bincount(np.unique(of, return_inverse=True)[1], x - x.mean())
    groups = len(sums)
    if groups == 1:
        return float(x.mean()), math.nan
    return float(x.mean()), float(np.sqrt(groups / (groups - 1) * (sums**2).sum()) / len(x))


def lines(cells: Sequence[Cell]) -> list[dict]:
    """A line for each verifier of each cell: rate, optimum, gap, and what the rate has over recursive
    rejection of draws without replacement at the same places, each with its interval of 95 %.
    """
    usual = {(cell.temperature, cell.drafts): cell.rates["rrs"] for cell in cells
             if cell.law == "without_replacement"}
    return [line for cell in cells for line in _lines(cell, usual[cell.temperature, cell.drafts])]


def _lines(cell: Cell, usual: list[float]) -> list[dict]:
    found = []
    for rule, values in cell.rates.items():
        gap, over = np.subtract(cell.optima, values), np.subtract(values, usual)
        line = {"law": cell.law, "verifier": rule, "drafts": cell.drafts, "temperature": cell.temperature}
        means = {"rate": values, "optimum": cell.optima, "gap": gap, "over_rrs": over}
        for name, numbers in means.items():
            middle, error = mean(numbers, cell.texts)
            ends = [middle - _Z_95 * error, middle + _Z_95 * error]
            line |= {name: middle, f"{name}_interval": None if math.isnan(error) else ends}
        found.append(line | {"exact": rule not in cell.estimated})
    return found
