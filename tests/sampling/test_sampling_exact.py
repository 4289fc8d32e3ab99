"""Every rule emits, with every law that it is exact for, the law p, by enumeration of all that can be."""

import pytest
import torch
from sampling_pairs import best_by_program, distance, exact_ways, judged, pairs

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, enumerate_candidates
from dare_job.decode.sampling.rules import RULES
from dare_job.decode.sampling.verify import Verifier
from dare_job.errors import ConfigError
from dare_job.evaluate.acceptance.optimum import by_subsets, optimum

WAYS = sorted({way[:2] for way in exact_ways()})
OPTIMAL = {("greedy", "greedy"), ("spechub", "spechub"), ("naive", "top_k"), ("rrs", "top_k")}


@pytest.mark.parametrize(("rule", "law"), WAYS)
def test_law_of_output(rule, law):
    """Total variation at most 1e-12; no more accepted than the optimum, and as much where that is claimed."""
    for _, _, tokens, n in (way for way in exact_ways() if way[:2] == (rule, law)):
        verifier = Verifier(rule, law, n)
        for p, q in pairs(tokens):
            output, rate = judged(verifier, p, q)
            assert distance(output, p) <= 1e-12
            best = optimum(law, p, q, n)
            assert rate <= best + 1e-9
            if (rule, law) in OPTIMAL or n == 1 and rule != "naive":
                assert rate == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("law", DISTRIBUTIONS)
def test_optimum(law):
    """The formulas, the minimum over all sets and the linear program are one number."""
    for tokens, n in ((1, 2), (3, 2), (4, 3), (5, 1), (4, 4), (6, 2)):
        _three_optima_are_one(law, tokens, n, pairs(tokens, seed=1))
    _three_optima_are_one(law, 6, 4, pairs(6, seed=1)[:2])


@pytest.mark.slow
@pytest.mark.parametrize("law", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 6])
def test_optimum_of_every_size(law, tokens, n):
    _three_optima_are_one(law, tokens, n, pairs(tokens, seed=2))


def _three_optima_are_one(law, tokens, n, both):
    if DISTRIBUTIONS[law].count not in (None, n):
        return
    for p, q in both:
        tuples, chances = enumerate_candidates(DISTRIBUTIONS[law], q, n)
        assert float(chances.sum()) == pytest.approx(1, abs=1e-12)
        best = optimum(law, p, q, n)
        assert best == pytest.approx(by_subsets(p, tuples, chances), abs=1e-12)
        assert best == pytest.approx(best_by_program(p, tuples, chances), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "law"), WAYS)
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 6])
def test_law_of_output_of_every_size(rule, law, tokens):
    for n in (1, 2, 3, 4):
        if RULES[rule].count not in (None, n) or DISTRIBUTIONS[law].count not in (None, n):
            continue
        verifier = Verifier(rule, law, n)
        for p, q in pairs(tokens, seed=4):
            output, rate = judged(verifier, p, q)
            assert distance(output, p) <= 1e-12 and rate <= optimum(law, p, q, n) + 1e-9


def test_refusals():
    """A rule refuses a law that it is not exact for, and says which rules fit."""
    for rule in RULES.values():
        for law in set(DISTRIBUTIONS) - set(rule.distributions):
            with pytest.raises(ConfigError, match=f"{rule.name}.*{law}.*naive"):
                Verifier(rule.name, law, rule.count or DISTRIBUTIONS[law].count or 3)
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
    """Where p is one-hot, as at temperature 0, nothing but its token comes out, whatever the chance."""
    grid = torch.cartesian_prod(*[torch.tensor([0.0, 0.3, 1 - 2**-53], dtype=torch.float64)] * 3)
    for rule, law in WAYS:
        n = 2 if 2 in (RULES[rule].count, DISTRIBUTIONS[law].count) or not RULES[rule].count else 1
        for target in range(3):
            p = torch.eye(3)[target]
            for _, q in pairs(3):
                tuples, _ = enumerate_candidates(DISTRIBUTIONS[law], q, n)
                rows = torch.cartesian_prod(torch.arange(len(tuples)), torch.arange(len(grid)))
                drafts, uniforms = tuples[rows[:, 0]], grid[rows[:, 1], : n + 1]
                size = len(rows), -1
                done = Verifier(rule, law, n).verify(p.expand(*size), q.expand(*size), drafts, uniforms)
                assert (done.token == target).all()
                assert ((done.place >= 0) == (drafts == target).any(-1)).all()
