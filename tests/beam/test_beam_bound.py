"""The bound on passed layers: the optimum for one output, and at least a linear program's for several."""

import numpy as np
import pytest
import torch
from beam_models import near, write
from decode_models import prompts
from optimum_by_subsets import by_subsets
from scipy.optimize import linprog
from two_layers import DISTRIBUTION_NAMES

from dare_job.bench.beam.bound import BoundedEngine, bound
from dare_job.decode.beam.drafting import BeamDrafter
from dare_job.decode.beam.kernel import verify
from dare_job.decode.request import Request
from dare_job.decode.sampling.distributions import distribution_for, enumerate_candidates, sample_candidates
from dare_job.decode.sampling.rules import normalised
from dare_job.decode.settings import Beams, EngineSettings

DRAWS = 40_000
NEAR = 0.02  # more than 5 standard errors of a difference of two shares


def distributions(seed: int, size: int):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, size, generator=generator).double() ** 3 + 1e-3
    return normalised(p[None])[0], normalised(q[None])[0]


def estimate(p, q, drafts, width, outputs, draft_distribution):
    return bound(p, q, drafts, width, outputs, draft_distribution, torch.Generator().manual_seed(1), DRAWS)


def program(p, q, drafts, width, outputs, draft_distribution) -> float:
    """Return the highest probability that all outputs are among the drafts, over all couplings."""
    outs, weights = enumerate_candidates(distribution_for(outputs), p, width)
    drafts_of, shares = enumerate_candidates(distribution_for(draft_distribution), q, drafts)
    inside = (outs[:, None, :, None] == drafts_of[None, :, None]).any(-1).all(-1).numpy()  # (O, D)
    at = np.argwhere(inside)
    rows = np.zeros((len(outs) + len(drafts_of), len(at)))
    rows[at[:, 0], np.arange(len(at))] = 1
    rows[len(outs) + at[:, 1], np.arange(len(at))] = 1
    found = linprog(-np.ones(len(at)), rows, torch.cat((weights, shares)).numpy(), method="highs")
    return -found.fun


@pytest.mark.parametrize("draft_distribution", DISTRIBUTION_NAMES)
def test_one_output_gives_the_optimum(draft_distribution):
    for seed in range(3):
        p, q = distributions(seed, 8)
        highest = by_subsets(p, *enumerate_candidates(distribution_for(draft_distribution), q, 3))
        assert estimate(p, q, 3, 1, "iid", draft_distribution) == pytest.approx(highest, abs=NEAR)


@pytest.mark.parametrize("outputs", DISTRIBUTION_NAMES)
@pytest.mark.parametrize("draft_distribution", DISTRIBUTION_NAMES)
def test_two_outputs_bound_every_coupling(outputs, draft_distribution):
    """The bound is close to the optimum, and the kernel stays below it."""
    for seed in range(4):
        p, q = distributions(seed, 5)
        highest, found = (
            program(p, q, 3, 2, outputs, draft_distribution),
            estimate(p, q, 3, 2, outputs, draft_distribution),
        )
        assert highest - NEAR < found < highest + 0.1
        generator = torch.Generator().manual_seed(2)
        uniform_values = torch.rand(2, DRAWS, 3, generator=generator, dtype=torch.float64)
        drafts = sample_candidates(
            distribution_for(draft_distribution), q.expand(DRAWS, -1), 3, uniform_values[0]
        )
        verified = verify(p.expand(DRAWS, -1), q.expand(DRAWS, -1), drafts, uniform_values[1],
                          torch.full((DRAWS,), 2), outputs, draft_distribution)
        assert float((verified.counts >= 2).double().mean()) < highest + NEAR


def test_equal_distributions_pass_all():
    p, _ = distributions(0, 8)
    assert estimate(p, p, 3, 2, "without_replacement", "without_replacement") > 1 - NEAR


@pytest.mark.parametrize("outputs", DISTRIBUTION_NAMES)
def test_recording_the_bound_changes_no_text(outputs):
    """With the target as draft model, more layers could pass than with a poor one."""
    target = near("llama", 0.0, 0.8)
    beams = Beams(3, 4, 2, layers=3, distribution=outputs, draft_distribution=outputs, seed=2)
    found = {}
    for noise in (0.0, 0.5):
        draft = near("llama", noise, 0.8)
        asked = EngineSettings(max_new_tokens=20, batch_size=3, score="never")
        engine = BoundedEngine(target, asked, beams, BeamDrafter(draft))
        results = engine.run(Request(i, text) for i, text in enumerate(prompts()))
        alone = write(target, prompts(), beams, draft)
        assert all(np.array_equal(one.token_ids, alone[one.id].token_ids) for one in results)
        assert len(engine.bounds) > 2 and all(0 <= one <= 1 for one in engine.bounds)
        found[noise] = np.mean(engine.bounds)
    assert found[0.5] < found[0.0]
