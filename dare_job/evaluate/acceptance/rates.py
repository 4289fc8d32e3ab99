"""Acceptance rates: the share of nodes at which a candidate is accepted, per rule and draft distribution.

Rates are exact where a closed form or an enumeration exists, and otherwise estimated.
"""

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
from dare_job.evaluate.acceptance import closed_forms, estimates, inclusion, recursive, three_candidates
from dare_job.evaluate.acceptance.optimum import most_probable, optimum

_PATHS = 20_000  # sampled for an estimate whose cost does not grow with the vocabulary
_MAX_TUPLES, _BATCH_VALUES = 20_000, 1 << 22  # maximum to enumerate; values per batch of rows
_MIN_REST = 1e-6  # minimum q outside the n - 1 most probable tokens; below it differences cancel


class Rate(NamedTuple):
    """Probability that a candidate is accepted, its standard error (0 if exact), and whether it is exact."""

    value: float
    error: float = 0.0
    exact: bool = True


def rate(rule: str, distribution: str, p: torch.Tensor, q: torch.Tensor, n: int, samples: int = 1000,
         seed: int = 0) -> Rate:
    """Return the acceptance rate for p and q float32 (V,).

    It is exact to rounding, and to 1e-9 for ``without_replacement`` and ``distinct``. With more than 20,000
    tuples some rates are unbiased seeded estimates instead: ``rrs`` of ``without_replacement`` from five
    candidates on, ``rrs`` of ``distinct`` from four, ``greedy`` of ``without_replacement`` from four. They
    use 20,000 samples for ``without_replacement``, or ``samples`` samples for ``distinct`` and where a few
    tokens have nearly all of q; the standard error then ignores events rarer than a sample.

    Raises
    ------
    ConfigError
        The rule or the distribution is unknown, or the rule is not exact for n candidates of the
        distribution.
    """
    rule_for(rule, distribution_for(distribution), n)
    closed_form = _closed_form("rrs" if rule == "mcss" else rule, distribution, p, q, n)
    if closed_form is not None:
        return Rate(closed_form)
    verifier, support = Verifier(rule, distribution, n), int((q > 0).sum())
    if support ** n <= _MAX_TUPLES:
        tuples, probabilities = enumerate_candidates(verifier.distribution, q, n)
        return Rate(float(probabilities @ _accepted(verifier, p, q, tuples)))
    if distribution == "without_replacement" and _split(*_normalised(q), n)[1].sum() > _MIN_REST:
        values = estimates.without_replacement("rrs" if rule == "mcss" else rule, *_normalised(p, q), n,
                                               _PATHS, seed)
    else:
        values = _estimated(verifier, p, q, samples, seed)
    return Rate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), exact=False)


def _closed_form(rule: str, distribution: str, p: torch.Tensor, q: torch.Tensor, n: int) -> float | None:
    """Return the exact rate, or None if only an estimate or enumeration is possible."""
    if n == 1 and rule not in ("naive", "priority") or rule == distribution or distribution == "top_k":
        return optimum(distribution, p, q, n)
    if rule == "priority":
        rows = (normalised(weights[None].double()) for weights in (p, q))
        return float(priority_plan(*rows, n).accepted.sum())
    p, q = _normalised(p, q)
    if distribution in ("without_replacement", "distinct") and np.count_nonzero(q) <= n:
        return float(p[q > 0].sum())  # every token is a candidate
    if distribution == "greedy" or (rule, distribution) == ("naive", "spechub"):
        return _one_random_candidate(rule, p, q, n)
    if (rule, distribution) in _ANY_COUNT:
        return _ANY_COUNT[rule, distribution](p, q, n)
    function = _FIXED_COUNT[rule, distribution].get(n)
    return None if function is None else function(p, q)


_ANY_COUNT = {  # for any number of candidates
    ("k_seq", "iid"): closed_forms.one_threshold,
    ("rrs", "iid"): closed_forms.independent,
    ("naive", "iid"): lambda p, q, n: float((p * (1 - (1 - q) ** n)).sum()),
    ("naive", "without_replacement"): inclusion.sequential,
    ("naive", "distinct"): inclusion.distinct,
}
_FIXED_COUNT = {  # by number of candidates
    ("rrs", "without_replacement"): {n: partial(recursive.sequential, n=n) for n in (2, 3, 4)},
    ("rrs", "distinct"): {2: closed_forms.rrs_distinct, 3: three_candidates.distinct},
    ("rrs", "spechub"): {2: closed_forms.rrs_spechub},
    ("greedy", "without_replacement"): {2: closed_forms.greedy_without_replacement,
                                        3: three_candidates.greedy},
}


def _one_random_candidate(rule: str, p: np.ndarray, q: np.ndarray, n: int) -> float:
    """Rate with n - 1 deterministic candidates and a sample of the rest; rrs verifies it with p's rest."""
    best, rest = _split(q, n)
    deterministic, mass = p[best].sum(), rest.sum()
    if mass == 0:
        return float(deterministic)
    last = rest / mass
    accepted = p * last if rule == "naive" else np.minimum(p, (1 - deterministic) * last)
    return float(deterministic + accepted.sum())


def _split(q: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the n - 1 most probable tokens, and q with 0 in their places."""
    best, rest = most_probable(q, n - 1), q.copy()
    rest[best] = 0
    return best, rest


def _normalised(*weights: torch.Tensor) -> tuple[np.ndarray, ...]:
    arrays = [np.asarray(each, np.float64) for each in weights]
    return tuple(each / each.sum() for each in arrays)


def _accepted(verifier: Verifier, p: torch.Tensor, q: torch.Tensor, tuples: torch.Tensor) -> torch.Tensor:
    """Return the probability float64 (M,) that one candidate of each tuple is accepted."""
    parts = []
    for part in tuples.split(max(1, _BATCH_VALUES // len(p))):
        output = verifier.output_distribution(p.expand(len(part), -1), q.expand(len(part), -1), part)
        parts.append(output.places.sum(-1))
    return torch.cat(parts)


def _estimated(verifier: Verifier, p: torch.Tensor, q: torch.Tensor, samples: int, seed: int) -> np.ndarray:
    """Return estimates (samples,); for recursive rejection only the rejected tokens are sampled."""
    rng, parts = torch.Generator().manual_seed(seed), []
    uniforms = torch.rand((samples, verifier.n), generator=rng, dtype=torch.float64)
    for part in uniforms.split(max(1, _BATCH_VALUES // len(p))):
        rows = p.expand(len(part), -1), q.expand(len(part), -1)
        if verifier.rule.name in ("rrs", "mcss"):
            parts.append(1 - _rejected(verifier, *rows, part))
        else:
            candidates = sample_candidates(verifier.distribution, rows[1], verifier.n, part)
            parts.append(_accepted(verifier, p, q, candidates))
    return torch.cat(parts).numpy()


def _rejected(verifier: Verifier, p: torch.Tensor, q: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the probability (R,) that all candidates are rejected, for p and q (R, V).

    Each candidate is sampled from the distribution of rejected candidates, given those before.
    """
    candidates = torch.full(uniforms.shape, NONE)
    p, q = normalised(p.double()), normalised(q.double())
    state = verifier.rule.start(verifier.distribution, p, q, candidates)
    product = state.p.new_ones(len(p))
    for j in range(verifier.n):
        rejected = (state.s - state.p).clamp_min(0)
        product *= rejected.sum(-1)
        candidates[:, j] = sample_tokens(rejected, uniforms[:, j])
        state = verifier.rule.reject(verifier.distribution, state, j)
    return product
