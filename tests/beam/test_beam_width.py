"""Dynamic widths: the recursion against samples, and the layers that a step passes against theorem 3.2."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from dare_job.decode.beam.layer import (
    acceptance_rates,
    accepted_count_table,
    accepted_tail,
    layer_widths,
    min_expected_layers,
)
from dare_job.decode.beam.verification import surviving_drafts, verify
from dare_job.decode.sampling.distributions import distribution_for, sample_candidates
from dare_job.decode.sampling.rules import normalised

DRAWS = 40_000
ONE = torch.ones(1).double()
ODDS = 1e-6  # probability that a correct recursion fails one of these comparisons


def distributions(seed: int, size: int = 6):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, size, generator=generator).double() ** 3 + 1e-3
    return normalised(p[None])[0], normalised(q[None])[0]


def accepted(p, q, n, seed, alive=None):
    """Return how many of n independent drafts are accepted, (DRAWS,), with no limit on outputs."""
    generator = torch.Generator().manual_seed(seed)
    p, q = p.expand(DRAWS, -1), q.expand(DRAWS, -1)
    drafts = sample_candidates(
        distribution_for("iid"), q, n, torch.rand(DRAWS, n, generator=generator, dtype=torch.float64)
    )
    if alive is not None:
        q, drafts, _ = surviving_drafts(q, drafts, alive.expand(DRAWS, -1))
    uniforms = torch.rand(DRAWS, n, generator=generator, dtype=torch.float64)
    return verify(p, q, drafts, uniforms, torch.full((DRAWS,), n), "iid", "iid").counts


@pytest.mark.parametrize("seed", range(3))
def test_recursion(seed):
    p, q = distributions(seed)
    n = 5
    table = accepted_count_table(acceptance_rates(p[None], q[None], n))[0]
    assert torch.allclose(table.sum(-1), torch.ones(n + 1).double(), atol=1e-12)
    counts = accepted(p, q, n, seed)
    for k in range(n + 1):
        assert binomtest(int((counts == k).sum()), DRAWS, float(table[n, k])).pvalue > ODDS


def test_recursion_with_rejected_parents():
    """A binomial number of drafts remains when some are dropped."""
    p, q = distributions(7)
    alive = torch.tensor([1, 1, 0, 1, 0, 1]).bool()
    p = normalised((p * alive)[None])
    left, _, mass = surviving_drafts(q[None], torch.zeros(1, 1).long(), alive[None])
    reached = accepted_tail(p, left, 4, mass)[0]
    counts = accepted(p[0], q, 4, 5, alive)
    for k in range(1, 5):
        assert binomtest(int((counts >= k).sum()), DRAWS, float(reached[k])).pvalue > ODDS


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_width_is_the_largest_reached(threshold):
    for seed in range(5):
        p, q = distributions(seed)
        reached = accepted_tail(p[None], q[None], 4, ONE)[0]
        wide = int(layer_widths(reached[None], threshold, 1, 4))
        assert wide == 1 or reached[wide] >= threshold
        assert wide == 4 or reached[wide + 1] < threshold


def test_equal_distributions_keep_all():
    p, _ = distributions(0)
    reached = accepted_tail(p[None], p[None], 6, ONE)
    assert layer_widths(reached, 0.9, 1, 6).tolist() == [6] and layer_widths(reached, 0.9, 1, 3).tolist() == [
        3
    ]


@pytest.mark.parametrize("threshold", [0.7, 0.9])
def test_expected_layers_reach_the_bound(threshold):
    """Exact expectations over layers of random distributions: the bound holds, and p = q passes all layers.
    """
    depth, least, n = 4, 1, 4
    for seed in range(20):
        passed, betas = [], []
        for layer in range(depth):
            p, q = distributions(100 * seed + layer)
            reached = accepted_tail(p[None], q[None], n, ONE)[0]
            passed.append(float(reached[int(layer_widths(reached[None], threshold, least, n))]))
            betas.append(float(reached[least]))
        assert 1 + np.cumprod(passed).sum() >= min_expected_layers(threshold, min(betas), depth) - 1e-12
    assert min_expected_layers(1.0, 1.0, depth) == depth + 1
    assert min_expected_layers(0.5, 0.9, 2) == pytest.approx((1 - 0.5**3) / (1 - 0.5))
