"""The bound of passed layers: with one output the optimum, with several no less than a linear program's."""

import numpy as np
import pytest
import torch
from beam_models import near, write
from decode_models import prompts
from scipy.optimize import linprog

from dare_job.bench.beam.bound import BoundedEngine, bound
from dare_job.decode.beam.drafting import BeamDrafter
from dare_job.decode.beam.kernel import DISTRIBUTION_NAMES, verify
from dare_job.decode.request import Request
from dare_job.decode.sampling.distributions import distribution_for, enumerate_candidates, sample_candidates
from dare_job.decode.sampling.rules import normalised
from dare_job.decode.settings import Beams, EngineSettings
from dare_job.evaluate.acceptance.optimum import by_subsets

DRAWS = 40_000
NEAR = 0.02  # 5 standard errors of a difference of two shares of so many draws, and more


def laws(seed: int, size: int):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, size, generator=generator).double() ** 3 + 1e-3
    return normalised(p[None])[0], normalised(q[None])[0]


def estimate(p, q, drafts, width, outputs, drawn):
    return bound(p, q, drafts, width, outputs, drawn, torch.Generator().manual_seed(1), DRAWS)


def program(p, q, drafts, width, outputs, drawn) -> float:
    """The greatest probability that all outputs are among the drafts, over all joint laws of both."""
    outs, owed = enumerate_candidates(distribution_for(outputs), p, width)
    given, shares = enumerate_candidates(distribution_for(drawn), q, drafts)
    inside = (outs[:, None, :, None] == given[None, :, None]).any(-1).all(-1).numpy()  # (O, D)
    at = np.argwhere(inside)
    rows = np.zeros((len(outs) + len(given), len(at)))
    rows[at[:, 0], np.arange(len(at))] = 1
    rows[len(outs) + at[:, 1], np.arange(len(at))] = 1
    found = linprog(-np.ones(len(at)), rows, torch.cat((owed, shares)).numpy(), method="highs")
    return -found.fun


@pytest.mark.parametrize("drawn", DISTRIBUTION_NAMES)
def test_of_one_output_it_is_the_optimum(drawn):
    for seed in range(3):
        p, q = laws(seed, 8)
        most = by_subsets(p, *enumerate_candidates(distribution_for(drawn), q, 3))
        assert estimate(p, q, 3, 1, "iid", drawn) == pytest.approx(most, abs=NEAR)


@pytest.mark.parametrize("outputs", DISTRIBUTION_NAMES)
@pytest.mark.parametrize("drawn", DISTRIBUTION_NAMES)
def test_of_two_it_is_no_less_than_any_coupling(outputs, drawn):
    """And not far above it; the kernel stays below."""
    for seed in range(4):
        p, q = laws(seed, 5)
        most, found = program(p, q, 3, 2, outputs, drawn), estimate(p, q, 3, 2, outputs, drawn)
        assert most - NEAR < found < most + 0.1
        generator = torch.Generator().manual_seed(2)
        numbers = torch.rand(2, DRAWS, 3, generator=generator, dtype=torch.float64)
        drafts = sample_candidates(distribution_for(drawn), q.expand(DRAWS, -1), 3, numbers[0])
        judged = verify(p.expand(DRAWS, -1), q.expand(DRAWS, -1), drafts, numbers[1],
                       torch.full((DRAWS,), 2), outputs, drawn)
        assert float((judged.counts >= 2).double().mean()) < most + NEAR


def test_equal_laws_pass_all():
    p, _ = laws(0, 8)
    assert estimate(p, p, 3, 2, "without_replacement", "without_replacement") > 1 - NEAR


@pytest.mark.parametrize("outputs", DISTRIBUTION_NAMES)
def test_an_engine_that_notes_it_writes_the_same(outputs):
    """By a draft model that is the target more layers could pass than by a bad one."""
    target, beams = near("llama", 0.0, 0.8), Beams(3, 4, 2, layers=3, law=outputs, draft_law=outputs, seed=2)
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
