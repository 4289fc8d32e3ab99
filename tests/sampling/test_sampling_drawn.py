"""Sampling agrees with enumeration: exactly at the acceptance thresholds, and in frequencies."""

import pytest
import torch
from sampling_pairs import exact_cases, pairs
from scipy.stats import chi2

from dare_job.decode.sampling.distributions import (
    DISTRIBUTIONS,
    NONE,
    enumerate_candidates,
    sample_candidates,
)
from dare_job.decode.sampling.rules import gather_at
from dare_job.decode.sampling.verify import Verifier

ODDS = 1e-6  # false-alarm probability of one test, over random seeds
TINY = 1e-12


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize(("rule", "distribution"), sorted({way[:2] for way in exact_cases()}))
def test_acceptance_thresholds(rule, distribution):
    """A candidate is accepted just below its acceptance probability, and rejected just above it."""
    for _, _, tokens, n in (
        way for way in exact_cases() if way[:2] == (rule, distribution) and way[2:] != (6, 4)
    ):
        verifier = Verifier(rule, distribution, n)
        for p, q in pairs(tokens):
            tuples, _ = enumerate_candidates(DISTRIBUTIONS[distribution], q, n)
            p, q = (x.expand(len(tuples), -1) for x in (p, q))
            state = verifier.rule.start(verifier.distribution, _shares(p), _shares(q), tuples)
            uniforms = torch.full((len(tuples), n + 1), 1 - 2**-53, dtype=torch.float64)
            reached = torch.ones(len(tuples), dtype=torch.bool)
            for j in range(n):
                chance = verifier.rule.accept(state, j)
                reached &= chance < 1 - TINY
                for shift in (-TINY, TINY):
                    uniforms[:, j] = chance + shift
                    verified = reached & (chance + shift >= 0) & (chance > 0)
                    if shift > 0:  # where the residual does not contain the token
                        verified &= gather_at(verifier.rule.residual(state), state.candidates[:, j]) <= 0
                    token = verifier.verify(p, q, tuples, uniforms).token
                    assert ((token == state.candidates[:, j]) == (shift < 0))[verified].all()
                uniforms[:, j] = 1 - 2**-53
                state = verifier.rule.reject(verifier.distribution, state, j)


def _shares(weights):
    return weights.double() / weights.double().sum(-1, keepdim=True)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_samples_follow_the_distribution(distribution):
    """G-test; tokens of probability zero never occur, and no candidate beyond the support."""
    for seed, (tokens, n) in enumerate(((4, 2), (5, 3), (3, 4))):
        if DISTRIBUTIONS[distribution].count not in (None, n):
            continue
        for _, q in pairs(tokens):
            rng = torch.Generator().manual_seed(seed)
            uniforms = torch.rand((8000, n), generator=rng, dtype=torch.float64)
            drawn = sample_candidates(DISTRIBUTIONS[distribution], q.expand(8000, -1), n, uniforms)
            assert (torch.cat((q, torch.ones(1)))[drawn] > 0).all()
            assert (
                (drawn == NONE).sum(-1) == (0 if distribution == "iid" else max(0, n - int((q > 0).sum())))
            ).all()
            tuples, chances = enumerate_candidates(DISTRIBUTIONS[distribution], q, n)
            places = (drawn[:, None] == tuples[None]).all(-1)
            assert places.any(-1).all()
            _g_test(places.sum(0).double(), chances)


@pytest.mark.parametrize(("rule", "distribution"), sorted({way[:2] for way in exact_cases()}))
def test_frequencies(rule, distribution):
    """G-test of emitted tokens against p, for sampled drafts."""
    n = 1 if rule == "speculative" else 2
    for seed, (p, q) in enumerate(pairs(5)):
        rng = torch.Generator().manual_seed(seed)
        p, q = (x.expand(4000, -1) for x in (p, q))
        drawn = sample_candidates(
            DISTRIBUTIONS[distribution], q, n, torch.rand((len(p), n), generator=rng, dtype=torch.float64)
        )
        uniforms = torch.rand((len(p), n + 1), generator=rng, dtype=torch.float64)
        done = Verifier(rule, distribution, n).verify(p, q, drawn, uniforms)
        _g_test(done.token.bincount(minlength=5).double(), _shares(p[0]))
        accepted = drawn.gather(1, done.place.clamp_min(0)[:, None])[:, 0]
        assert (
            (accepted == done.token) | ((done.place == NONE) & (drawn != done.token[:, None]).all(-1))
        ).all()


def _g_test(counts, probabilities):
    """Rare cells are merged, since the G statistic's distribution needs large counts."""
    expected = probabilities * counts.sum()
    assert (counts[probabilities == 0] == 0).all()
    rare = expected < 10
    counts = torch.cat((counts[~rare], counts[rare].sum()[None]))
    expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    used = counts > 0
    g = 2 * (counts[used] * (counts[used] / expected[used]).log()).sum()
    freedom = int((expected > 0).sum()) - 1
    assert g <= 1e-6 if freedom == 0 else g <= chi2.isf(ODDS, freedom)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_row_depends_on_its_own_uniforms(distribution):
    """Samples of a row are the same alone and in a batch."""
    rng = torch.Generator().manual_seed(3)
    q = torch.softmax(4 * torch.randn((7, 1000), generator=rng), -1)
    uniforms = torch.rand((7, 2), generator=rng, dtype=torch.float64)
    together = sample_candidates(DISTRIBUTIONS[distribution], q, 2, uniforms)
    for row in range(7):
        alone = sample_candidates(DISTRIBUTIONS[distribution], q[row : row + 1], 2, uniforms[row : row + 1])
        assert together[row].tolist() == alone[0].tolist()


def test_largest_uniform_selects_the_last_token_with_weight():
    """Also where products are rounded up."""
    for tokens in (2, 3, 1000):
        for seed in range(20):
            q = torch.rand((1, tokens), generator=torch.Generator().manual_seed(seed))
            q[0, -1] = 0
            drawn = sample_candidates(
                DISTRIBUTIONS["iid"], q, 1, torch.full((1, 1), 1 - 2**-53, dtype=torch.float64)
            )
            assert drawn.tolist() == [[tokens - 2]]
