"""Acceptance rates: closed forms equal the enumeration, and estimates agree with it."""

import pytest
import torch
from sampling_pairs import exact_ways, judged, pairs

from dare_job.decode.sampling import Verifier, rates
from dare_job.decode.sampling.optimum import optimum
from dare_job.decode.sampling.rates import rate
from dare_job.errors import ConfigError

WAYS = sorted({way[:2] for way in exact_ways()})


@pytest.mark.parametrize(("rule", "law"), WAYS)
def test_equal_to_enumeration(rule, law):
    for _, _, tokens, n in (way for way in exact_ways() if way[:2] == (rule, law)):
        for p, q in pairs(tokens, seed=2):
            found = rate(rule, law, p, q, n)
            _, expected = judged(Verifier(rule, law, n), p, q)
            assert found.error == 0 and found.value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("rule", "law", "n"), [
    ("rrs", "without_replacement", 3), ("rrs", "without_replacement", 4), ("naive", "without_replacement", 3),
    ("greedy", "without_replacement", 3), ("rrs", "distinct", 3)])
def test_estimates(rule, law, n, monkeypatch):
    """Within 5 standard errors of the enumeration: odds under 1e-6 a pair, had the seed not been fixed."""
    for p, q in pairs(6)[:4]:
        _, expected = judged(Verifier(rule, law, n), p, q)
        monkeypatch.setattr(rates, "_TUPLES", 0)
        found = rate(rule, law, p, q, n)
        assert 0 < found.error < 0.02
        assert abs(found.value - expected) < 5 * found.error + 1e-9


@pytest.mark.parametrize("n", [2, 3, 4])
def test_many_tokens(n):
    """Nothing is over the optimum, and an estimate is near it where p and q are alike."""
    rng = torch.Generator().manual_seed(n)
    logits = 3 * torch.randn(20_000, generator=rng)
    p, q = torch.softmax(logits, -1), torch.softmax(logits + torch.randn(20_000, generator=rng), -1)
    for rule in ("rrs", "greedy"):
        found, best = rate(rule, "without_replacement", p, q, n), optimum("without_replacement", p, q, n)
        assert found.value < best + 5 * found.error and found.error < 1e-3
    assert rate("rrs", "without_replacement", p, q, n).value > rate("rrs", "iid", p, q, n).value
    assert optimum("iid", p, q, n) >= rate("k_seq", "iid", p, q, n).value > optimum("iid", p, q, 1)


def test_refused():
    with pytest.raises(ConfigError, match="k_seq"):
        rate("k_seq", "without_replacement", *pairs(3)[0], 2)
