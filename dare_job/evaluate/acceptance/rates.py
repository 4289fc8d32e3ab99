"""How many nodes have a candidate accepted, under each rule and law: exactly where that can be had."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from dare_job.decode.sampling.distributions import (
    NONE,
    distribution_for,
    enumerate_candidates,
    sample_candidates,
    sample_tokens,
)
from dare_job.decode.sampling.kseq import priority_plan
from dare_job.decode.sampling.rules import normalised, rule_for
from dare_job.decode.sampling.verify import Verifier
from dare_job.evaluate.acceptance import inclusion, recursive, rejection, three_candidates
from dare_job.evaluate.acceptance import (
    inclusion as acceptance_inclusion,
)
from dare_job.evaluate.acceptance import three_candidates as acceptance_three
from dare_job.evaluate.acceptance.optimum import most_probable, optimum

PATHS = 20_000  # drawn for an estimate, where one takes no time that grows with the vocabulary
_MAX_TUPLES, _BATCH_VALUES = 20_000, 1 << 22  # enumerated at most; numbers of a batch of rows
_MIN_REST = (
    1e-6  # of q, beside its n - 1 most probable tokens: under that, differences have lost their digits
)


class Rate(NamedTuple):
    """Probability that a candidate is accepted, its standard error, 0 where it is exact, and if it is."""

    value: float
    error: float = 0.0
    exact: bool = True


def rate(rule: str, law_name: str, p: torch.Tensor, q: torch.Tensor, n: int, draws: int = 1000,
         seed: int = 0) -> Rate:
    """Of p and q float32 (V,). ConfigError where the rule is not exact for the law.

    Exact: to rounding, for ``without_replacement`` and ``distinct`` to 1e-9. But where there are over 20,000
    tuples, ``rrs`` of ``without_replacement`` from five candidates on, of ``distinct`` from four, and
    ``greedy`` of ``without_replacement`` from four are unbiased estimates over seeded draws: 20,000 for
    ``without_replacement``; ``draws`` for ``distinct``, and where a few tokens have nearly all of q, each
    over the whole vocabulary (there the error says nothing of what is rarer than a draw).
    """
    rule_for(rule, distribution_for(law_name), n)
    known = _closed_form("rrs" if rule == "mcss" else rule, law_name, p, q, n)
    if known is not None:
        return Rate(known)
    verifier, support = Verifier(rule, law_name, n), int((q > 0).sum())
    if support ** n <= _MAX_TUPLES:
        tuples, chances = enumerate_candidates(verifier.distribution, q, n)
        return Rate(float(chances @ _accepted(verifier, p, q, tuples)))
    if law_name == "without_replacement" and _rest_mass(*_normalised(q), n) > _MIN_REST:
        found = rejection.estimates("rrs" if rule == "mcss" else rule, *_normalised(p, q), n, PATHS, seed)
    else:
        found = _estimated(verifier, p, q, draws, seed)
    return Rate(float(found.mean()), float(found.std(ddof=1) / np.sqrt(len(found))), exact=False)


def _closed_form(rule: str, law_name: str, p: torch.Tensor, q: torch.Tensor, n: int) -> float | None:
    """None where only an estimate can be had, or all tuples."""
    if n == 1 and rule not in ("naive", "priority") or rule == law_name or law_name == "top_k":
        return optimum(law_name, p, q, n)
    if rule == "priority":
        return float(
            priority_plan(normalised(p[None].double()), normalised(q[None].double()), n).accepted.sum()
        )
    p, q = _normalised(p, q)
    if law_name in ("without_replacement", "distinct") and np.count_nonzero(q) <= n:
        return float(p[q > 0].sum())  # all of them are candidates
    if law_name == "greedy" or (rule, law_name) == ("naive", "spechub"):
        return _one_random_candidate(rule, p, q, n)
    if (rule, law_name) in _ANY_COUNT:
        return _ANY_COUNT[rule, law_name](p, q, n)
    few = _FIXED_COUNT.get((rule, law_name), {}).get(n)
    return None if few is None else few(p, q)


_ANY_COUNT = {  # number of candidates
    ("k_seq", "iid"): rejection.one_threshold,
    ("rrs", "iid"): rejection.independent,
    ("naive", "iid"): lambda p, q, n: float((p * (1 - (1 - q) ** n)).sum()),
    ("naive", "without_replacement"): inclusion.sequential,
    ("naive", "distinct"): inclusion.distinct,
}
_FIXED_COUNT = {  # by their number
    ("rrs", "without_replacement"): {n: partial(recursive.sequential, n=n) for n in (2, 3, 4)},
    ("rrs", "distinct"): {2: acceptance_inclusion.two_distinct, 3: acceptance_three.distinct},
    ("rrs", "spechub"): {2: acceptance_inclusion.spechub},
    ("greedy", "without_replacement"): {2: acceptance_inclusion.greedy, 3: three_candidates.greedy},
}


def _one_random_candidate(rule: str, p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Of n - 1 certain candidates and a draw from the rest, to which rrs comes with what p has left."""
    best, rest = most_probable(q, n - 1), q.copy()
    rest[best] = 0
    sure, mass = p[best].sum(), rest.sum()
    if mass == 0:
        return float(sure)
    last = rest / mass
    return float(sure + ((p * last).sum() if rule == "naive" else np.minimum(p, (1 - sure) * last).sum()))


def _rest_mass(q: np.ndarray, n: int) -> float:
    rest = q.copy()
    rest[most_probable(q, n - 1)] = 0
    return float(rest.sum())


def _normalised(*weights: torch.Tensor) -> tuple[np.ndarray, ...]:
    arrays = [np.asarray(each, np.float64) for each in weights]
    return tuple(each / each.sum() for each in arrays)


def _accepted(verifier: Verifier, p: torch.Tensor, q: torch.Tensor, tuples: torch.Tensor) -> torch.Tensor:
    """Probability float64 (M,) that one of each tuple is accepted."""
    found = []
    for part in tuples.split(max(1, _BATCH_VALUES // len(p))):
        output = verifier.output_distribution(p.expand(len(part), -1), q.expand(len(part), -1), part)
        found.append(output.places.sum(-1))
    return torch.cat(found)


def _estimated(verifier: Verifier, p: torch.Tensor, q: torch.Tensor, draws: int, seed: int) -> np.ndarray:
    """Estimates (draws,). Of recursive rejection only the tokens that are rejected are drawn."""
    rng, found = torch.Generator().manual_seed(seed), []
    uniforms = torch.rand((draws, verifier.n), generator=rng, dtype=torch.float64)
    for part in uniforms.split(max(1, _BATCH_VALUES // len(p))):
        rows = p.expand(len(part), -1), q.expand(len(part), -1)
        if verifier.rule.name in ("rrs", "mcss"):
            found.append(1 - _rejected(verifier, *rows, part))
        else:
            found.append(
                _accepted(verifier, p, q, sample_candidates(verifier.distribution, rows[1], verifier.n, part))
            )
    return torch.cat(found).numpy()


def _rejected(verifier: Verifier, p: torch.Tensor, q: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Probability (R,) that all candidates are rejected, each given those before, which are drawn as rejected
    ones are: p, q (R, V)."""
    candidates = torch.full(uniforms.shape, NONE)
    state = verifier.rule.start(
        verifier.distribution, normalised(p.double()), normalised(q.double()), candidates
    )
    found = state.p.new_ones(len(p))
    for j in range(verifier.n):
        missed = (state.s - state.p).clamp_min(0)
        found *= missed.sum(-1)
        candidates[:, j] = sample_tokens(missed, uniforms[:, j])
        state = verifier.rule.reject(verifier.distribution, state, j)
    return found
