"""Acceptance rates: closed forms equal the enumeration, and estimates agree with it."""

import itertools

import numpy as np
import pytest
import torch
from sampling_pairs import exact_cases, exact_output, pairs

from dare_job.decode.sampling.verify import Verifier
from dare_job.errors import ConfigError
from dare_job.evaluate.acceptance import estimates, inclusion, rates, recursive
from dare_job.evaluate.acceptance.optimum import optimum
from dare_job.evaluate.acceptance.rates import rate
from dare_job.evaluate.acceptance.recursive import weighted_sum

CASES = sorted({way[:2] for way in exact_cases()})
SUMMED = [("rrs", "without_replacement", 3), ("greedy", "without_replacement", 3), ("rrs", "distinct", 3)]


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize(("rule", "distribution"), CASES)
def test_equal_to_enumeration(rule, distribution):
    for _, _, tokens, n in (way for way in exact_cases() if way[:2] == (rule, distribution)):
        for p, q in pairs(tokens, seed=2):
            result = rate(rule, distribution, p, q, n)
            _, expected = exact_output(Verifier(rule, distribution, n), p, q)
            assert result.error == 0 and result.value == pytest.approx(expected, abs=1e-9)


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize(("rule", "distribution", "n"), [
    *(("naive", distribution, n) for distribution in ("without_replacement", "distinct")
      for n in (1, 2, 3, 4)),
    *(("rrs", "without_replacement", n) for n in (2, 3, 4)), ("rrs", "distinct", 2), ("rrs", "distinct", 3),
    ("greedy", "without_replacement", 2), ("greedy", "without_replacement", 3), ("rrs", "spechub", 2)])
def test_closed_forms_equal_enumeration_to_rounding(rule, distribution, n, monkeypatch):
    """Without enumerating tuples, and with most tokens treated as light."""
    monkeypatch.setattr(rates, "_MAX_TUPLES", 0)
    for heavy, tokens in itertools.product((n, 8), (4, 6, 9)):
        monkeypatch.setattr(recursive, "HEAVY", heavy)
        for p, q in pairs(tokens, seed=3):
            result = rate(rule, distribution, p, q, n)
            _, expected = exact_output(Verifier(rule, distribution, n), p, q)
            assert result.exact and result.value == pytest.approx(expected, abs=1e-12 if n < 4 else 1e-10)


@pytest.mark.parametrize(("rule", "distribution", "n"), SUMMED)
@pytest.mark.parametrize(("spread", "noise"), [(1, 1.5), (3, 0.5), (0, 1.0)])
def test_interpolation(rule, distribution, n, spread, noise, monkeypatch):
    """For many tokens, compared with the sum over every token."""
    p, q = wide(600, spread, noise)
    result, points = rate(rule, distribution, p, q, n).value, []
    monkeypatch.setattr(recursive, "weighted_sum", lambda function, x, weights, tolerance: sum(
        points.append(at) or function(at, 0.0) * weight for at, weight in zip(x, weights, strict=True)))
    assert result == pytest.approx(rate(rule, distribution, p, q, n).value, abs=1e-9) and len(points) > 100


@pytest.mark.parametrize("spread", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_nested_interpolation(spread, monkeypatch):
    p, q = wide(60, spread, 1.0)
    result = rate("rrs", "without_replacement", p, q, 4).value
    monkeypatch.setattr(recursive, "weighted_sum", lambda function, x, weights, tolerance: sum(
        function(at, 0.0) * weight for at, weight in zip(x, weights, strict=True)))
    assert result == pytest.approx(rate("rrs", "without_replacement", p, q, 4).value, abs=1e-9)


def test_interpolation_refines_where_the_function_bends():
    x, weights = np.sort(np.random.default_rng(0).random((2, 20_000)))
    weights /= weights.sum()
    points = []

    def bent(at, tolerance):
        points.append(at)
        return abs(at - 0.3) + at**2

    assert weighted_sum(bent, x, weights, 1e-9) == pytest.approx(
        float(weights @ (abs(x - 0.3) + x**2)), abs=1e-9
    )
    near = [at for at in points if abs(at - 0.3) < 0.01]
    assert len(points) < 200 and len(near) > len(points) / 3


@pytest.mark.parametrize("n", [3, 5, 8])
@pytest.mark.parametrize(("spread", "noise"), [(0.01, 0.5), (3, 0.5), (8, 1.5), (0, 1.0)])
def test_quadrature(n, spread, noise):
    """Halving the step changes nothing; the rate exceeds that of fewer candidates, and not the optimum."""
    p, q = (np.asarray(each, np.float64) for each in wide(2000, spread, noise))
    p, q = p / p.sum(), q / q.sum()
    result = inclusion.sequential(p, q, n)
    assert result == pytest.approx(inclusion.sequential(p, q, n, 0.0625), abs=1e-12)
    assert inclusion.sequential(p, q, n - 1) < result
    assert result <= optimum("without_replacement", torch.tensor(p), torch.tensor(q), n)


@pytest.mark.parametrize(("rule", "distribution", "n"), [
    ("rrs", "without_replacement", 5), ("greedy", "without_replacement", 4), ("rrs", "distinct", 4)])
def test_estimates(rule, distribution, n, monkeypatch):
    """Within 5 standard errors of the enumeration: a false alarm has probability below 1e-6 per pair over
    random seeds.
    """
    for p, q in pairs(6)[:4]:
        _, expected = exact_output(Verifier(rule, distribution, n), p, q)
        monkeypatch.setattr(rates, "_MAX_TUPLES", 0)
        result = rate(rule, distribution, p, q, n)
        assert not result.exact and 0 < result.error < 0.005
        assert abs(result.value - expected) < 5 * result.error + 1e-9


@pytest.mark.parametrize(("rule", "distribution", "n"), [*SUMMED, ("rrs", "without_replacement", 4)])
def test_estimates_agree_with_closed_forms(rule, distribution, n):
    """With too many tokens for enumeration."""
    p, q = wide(2000, 2, 1.0)
    result = rate(rule, distribution, p, q, n)
    if distribution == "distinct":
        sampled = rates._estimated(Verifier(rule, distribution, n), p, q, 400, 0)
    else:
        sampled = estimates.without_replacement(rule, *rates._normalised(p, q), n, 20_000, 0)
    error = sampled.std() / np.sqrt(len(sampled))
    assert result.exact and abs(sampled.mean() - result.value) < 5 * error and error < 2e-3


@pytest.mark.parametrize("n", [2, 3, 4])
def test_many_tokens(n):
    """No rate exceeds the optimum, and sampling without replacement beats independent sampling."""
    rng = torch.Generator().manual_seed(n)
    logits = 3 * torch.randn(20_000, generator=rng)
    p, q = torch.softmax(logits, -1), torch.softmax(logits + torch.randn(20_000, generator=rng), -1)
    for rule in ("rrs", "greedy", "naive"):
        result, best = rate(rule, "without_replacement", p, q, n), optimum("without_replacement", p, q, n)
        assert result.value < best + 5 * result.error and result.error < 1e-3
    assert rate("rrs", "without_replacement", p, q, n).value > rate("rrs", "iid", p, q, n).value
    assert optimum("iid", p, q, n) >= rate("k_seq", "iid", p, q, n).value > optimum("iid", p, q, 1)


def test_unsupported_rule():
    with pytest.raises(ConfigError, match="k_seq"):
        rate("k_seq", "without_replacement", *pairs(3)[0], 2)


def wide(tokens: int, spread: float, noise: float):
    """Return p and q float32 (V,) of normal logits, or of Zipf's distribution for spread 0."""
    rng = torch.Generator().manual_seed(tokens)
    x, z = (torch.randn(tokens, generator=rng) for _ in range(2))
    x = spread * x if spread else -torch.arange(1, tokens + 1).log()
    return torch.softmax(x, -1), torch.softmax(x + noise * z, -1)
