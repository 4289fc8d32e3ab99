"""By exact enumeration, every rule emits tokens with distribution p for every draft distribution it supports.
"""

import pytest
import torch
from optimum_by_subsets import by_subsets
from sampling_pairs import distance, exact_cases, exact_output, linear_program_optimum, pairs

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, enumerate_candidates
from dare_job.decode.sampling.rules import RULES
from dare_job.decode.sampling.verify import Verifier
from dare_job.errors import ConfigError
from dare_job.evaluate.acceptance.optimum import optimum

CASES = sorted({way[:2] for way in exact_cases()})
OPTIMAL = {("greedy", "greedy"), ("spechub", "spechub"), ("naive", "top_k"), ("rrs", "top_k")}


@pytest.mark.parametrize(("rule", "distribution"), CASES)
def test_output_distribution(rule, distribution):
    """Total variation is at most 1e-12, and acceptance at most the optimum, with equality where claimed."""
    for _, _, tokens, n in (way for way in exact_cases() if way[:2] == (rule, distribution)):
        verifier = Verifier(rule, distribution, n)
        for p, q in pairs(tokens):
            output, rate = exact_output(verifier, p, q)
            assert distance(output, p) <= 1e-12
            best = optimum(distribution, p, q, n)
            assert rate <= best + 1e-9
            if (rule, distribution) in OPTIMAL or n == 1 and rule != "naive":
                assert rate == pytest.approx(best, abs=1e-9)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_optimum(distribution):
    """The formula, the minimum over all subsets and the linear program agree."""
    for tokens, n in ((1, 2), (3, 2), (4, 3), (5, 1), (4, 4), (6, 2)):
        _assert_three_optima_agree(distribution, tokens, n, pairs(tokens, seed=1))
    _assert_three_optima_agree(distribution, 6, 4, pairs(6, seed=1)[:2])


@pytest.mark.release
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 6])
def test_optimum_of_every_size(distribution, tokens, n):
    _assert_three_optima_agree(distribution, tokens, n, pairs(tokens, seed=2))


def _assert_three_optima_agree(distribution, tokens, n, both):
    if DISTRIBUTIONS[distribution].count not in (None, n):
        return
    for p, q in both:
        tuples, chances = enumerate_candidates(DISTRIBUTIONS[distribution], q, n)
        assert float(chances.sum()) == pytest.approx(1, abs=1e-12)
        best = optimum(distribution, p, q, n)
        assert best == pytest.approx(by_subsets(p, tuples, chances), abs=1e-12)
        assert best == pytest.approx(linear_program_optimum(p, tuples, chances), abs=1e-9)


@pytest.mark.release
@pytest.mark.parametrize(("rule", "distribution"), CASES)
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 6])
def test_output_distribution_of_every_size(rule, distribution, tokens):
    for n in (1, 2, 3, 4):
        if RULES[rule].count not in (None, n) or DISTRIBUTIONS[distribution].count not in (None, n):
            continue
        verifier = Verifier(rule, distribution, n)
        for p, q in pairs(tokens, seed=4):
            output, rate = exact_output(verifier, p, q)
            assert distance(output, p) <= 1e-12 and rate <= optimum(distribution, p, q, n) + 1e-9


def test_unsupported_distributions_and_counts():
    """A rule rejects a distribution for which it is not exact, and the message names rules that fit."""
    for rule in RULES.values():
        for distribution in set(DISTRIBUTIONS) - set(rule.distributions):
            with pytest.raises(ConfigError, match=f"{rule.name}.*{distribution}.*naive"):
                Verifier(rule.name, distribution, rule.count or DISTRIBUTIONS[distribution].count or 3)
    with pytest.raises(ConfigError, match="speculative.* needs exactly 1 candidates, not 2"):
        Verifier("speculative", "iid", 2)
    with pytest.raises(ConfigError, match="spechub.*exactly 2 candidates, not 3"):
        Verifier("rrs", "spechub", 3)
    with pytest.raises(ConfigError, match="at least one candidate"):
        Verifier("rrs", "iid", 0)
    with pytest.raises(ConfigError, match="unknown verification rule 'best': use speculative"):
        Verifier("best", "iid", 2)
    with pytest.raises(ConfigError, match="unknown draft distribution 'sorted': use iid"):
        Verifier("rrs", "sorted", 2)


def test_one_hot_target():
    """If p is one-hot, as at temperature 0, only its token is emitted, whatever the uniforms."""
    grid = torch.cartesian_prod(*[torch.tensor([0.0, 0.3, 1 - 2**-53], dtype=torch.float64)] * 3)
    for rule, distribution in CASES:
        n = 2 if 2 in (RULES[rule].count, DISTRIBUTIONS[distribution].count) or not RULES[rule].count else 1
        for target in range(3):
            p = torch.eye(3)[target]
            for _, q in pairs(3):
                tuples, _ = enumerate_candidates(DISTRIBUTIONS[distribution], q, n)
                rows = torch.cartesian_prod(torch.arange(len(tuples)), torch.arange(len(grid)))
                drafts, uniforms = tuples[rows[:, 0]], grid[rows[:, 1], : n + 1]
                size = len(rows), -1
                done = Verifier(rule, distribution, n).verify(
                    p.expand(*size), q.expand(*size), drafts, uniforms
                )
                assert (done.token == target).all()
                assert ((done.place >= 0) == (drafts == target).any(-1)).all()
