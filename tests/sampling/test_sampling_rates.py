"""Acceptance rates: exact ones equal the enumeration, whatever way they are had; estimates agree with it."""

import itertools

import numpy as np
import pytest
import torch
from sampling_pairs import exact_ways, judged, pairs

from dare_job.decode.sampling.verify import Verifier
from dare_job.errors import ConfigError
from dare_job.evaluate.acceptance import inclusion, rates, recursive
from dare_job.evaluate.acceptance.optimum import optimum
from dare_job.evaluate.acceptance.rates import rate
from dare_job.evaluate.acceptance.recursive import weighted_sum

WAYS = sorted({way[:2] for way in exact_ways()})
SUMMED = [("rrs", "without_replacement", 3), ("greedy", "without_replacement", 3), ("rrs", "distinct", 3)]


@pytest.mark.parametrize(("rule", "law"), WAYS)
def test_equal_to_enumeration(rule, law):
    for _, _, tokens, n in (way for way in exact_ways() if way[:2] == (rule, law)):
        for p, q in pairs(tokens, seed=2):
            found = rate(rule, law, p, q, n)
            _, expected = judged(Verifier(rule, law, n), p, q)
            assert found.error == 0 and found.value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("rule", "law", "n"), [
    *(("naive", law, n) for law in ("without_replacement", "distinct") for n in (2, 3, 4)),
    *(("rrs", "without_replacement", n) for n in (2, 3, 4)), ("rrs", "distinct", 2), ("rrs", "distinct", 3),
    ("greedy", "without_replacement", 2), ("greedy", "without_replacement", 3), ("rrs", "spechub", 2)])
def test_sums_equal_enumeration_to_rounding(rule, law, n, monkeypatch):
    """With no tuple enumerated, and where most tokens are light ones."""
    monkeypatch.setattr(rates, "_MAX_TUPLES", 0)
    for heavy, tokens in itertools.product((n, 8), (4, 6, 9)):
        monkeypatch.setattr(recursive, "HEAVY", heavy)
        for p, q in pairs(tokens, seed=3):
            found = rate(rule, law, p, q, n)
            _, expected = judged(Verifier(rule, law, n), p, q)
            assert found.exact and found.value == pytest.approx(expected, abs=1e-12 if n < 4 else 1e-10)


@pytest.mark.parametrize(("rule", "law", "n"), SUMMED)
@pytest.mark.parametrize(("spread", "noise"), [(1, 1.5), (3, 0.5), (0, 1.0)])
def test_interpolation(rule, law, n, spread, noise, monkeypatch):
    """Of many tokens, against the sums over every one of them."""
    p, q = wide(600, spread, noise)
    found, asked = rate(rule, law, p, q, n).value, []
    monkeypatch.setattr(recursive, "weighted_sum", lambda function, x, weights, miss: sum(
        asked.append(at) or function(at, 0.0) * weight for at, weight in zip(x, weights, strict=True)))
    assert found == pytest.approx(rate(rule, law, p, q, n).value, abs=1e-9) and len(asked) > 100


@pytest.mark.parametrize("spread", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_interpolation_inside_another(spread, monkeypatch):
    p, q = wide(60, spread, 1.0)
    found = rate("rrs", "without_replacement", p, q, 4).value
    monkeypatch.setattr(recursive, "weighted_sum", lambda function, x, weights, miss: sum(
        function(at, 0.0) * weight for at, weight in zip(x, weights, strict=True)))
    assert found == pytest.approx(rate("rrs", "without_replacement", p, q, 4).value, abs=1e-9)


def test_a_sum_asks_where_the_function_bends():
    x, weights = np.sort(np.random.default_rng(0).random((2, 20_000)))
    weights /= weights.sum()
    asked = []

    def bent(at, miss):
        asked.append(at)
        return abs(at - 0.3) + at**2

    assert weighted_sum(bent, x, weights, 1e-9) == pytest.approx(
        float(weights @ (abs(x - 0.3) + x**2)), abs=1e-9
    )
    near = [at for at in asked if abs(at - 0.3) < 0.01]
    assert len(asked) < 200 and len(near) > len(asked) / 3


@pytest.mark.parametrize("n", [3, 5, 8])
@pytest.mark.parametrize(("spread", "noise"), [(0.01, 0.5), (3, 0.5), (8, 1.5), (0, 1.0)])
def test_the_integral(n, spread, noise):
    """Half of its step changes nothing, and no rate is under that of fewer candidates or over the optimum."""
    p, q = (np.asarray(each, np.float64) for each in wide(2000, spread, noise))
    p, q = p / p.sum(), q / q.sum()
    found = inclusion.sequential(p, q, n)
    assert found == pytest.approx(inclusion.sequential(p, q, n, 0.0625), abs=1e-12)
    assert inclusion.sequential(p, q, n - 1) < found
    assert found <= optimum("without_replacement", torch.tensor(p), torch.tensor(q), n)


@pytest.mark.parametrize(("rule", "law", "n"), [
    ("rrs", "without_replacement", 5), ("greedy", "without_replacement", 4), ("rrs", "distinct", 4)])
def test_estimates(rule, law, n, monkeypatch):
    """Within 5 standard errors of the enumeration: odds under 1e-6 a pair, had the seed not been fixed."""
    for p, q in pairs(6)[:4]:
        _, expected = judged(Verifier(rule, law, n), p, q)
        monkeypatch.setattr(rates, "_MAX_TUPLES", 0)
        found = rate(rule, law, p, q, n)
        assert not found.exact and 0 < found.error < 0.005
        assert abs(found.value - expected) < 5 * found.error + 1e-9


@pytest.mark.parametrize(("rule", "law", "n"), [*SUMMED, ("rrs", "without_replacement", 4)])
def test_estimates_of_what_is_exact(rule, law, n):
    """Over many tokens, where nothing can be enumerated."""
    p, q = wide(2000, 2, 1.0)
    found, shares = rate(rule, law, p, q, n), rates._normalised(p, q)
    if law == "distinct":
        drawn = rates._estimated(Verifier(rule, law, n), p, q, 400, 0)
    else:
        drawn = rates.rejection.estimates(rule, *shares, n, 20_000, 0)
    error = drawn.std() / np.sqrt(len(drawn))
    assert found.exact and abs(drawn.mean() - found.value) < 5 * error and error < 2e-3


@pytest.mark.parametrize("n", [2, 3, 4])
def test_many_tokens(n):
    """Nothing is over the optimum, and draws without replacement are worth more than independent ones."""
    rng = torch.Generator().manual_seed(n)
    logits = 3 * torch.randn(20_000, generator=rng)
    p, q = torch.softmax(logits, -1), torch.softmax(logits + torch.randn(20_000, generator=rng), -1)
    for rule in ("rrs", "greedy", "naive"):
        found, best = rate(rule, "without_replacement", p, q, n), optimum("without_replacement", p, q, n)
        assert found.value < best + 5 * found.error and found.error < 1e-3
    assert rate("rrs", "without_replacement", p, q, n).value > rate("rrs", "iid", p, q, n).value
    assert optimum("iid", p, q, n) >= rate("k_seq", "iid", p, q, n).value > optimum("iid", p, q, 1)


def test_refused():
    with pytest.raises(ConfigError, match="k_seq"):
        rate("k_seq", "without_replacement", *pairs(3)[0], 2)


def wide(tokens: int, spread: float, noise: float):
    """p and q float32 (V,) of normal logits, or of Zipf's law where they have no spread."""
    rng = torch.Generator().manual_seed(tokens)
    x, z = (torch.randn(tokens, generator=rng) for _ in range(2))
    x = spread * x if spread else -torch.arange(1, tokens + 1).log()
    return torch.softmax(x, -1), torch.softmax(x + noise * z, -1)
