"""Without tree attention the same is verified and written; only what the target reads is more."""

import numpy as np
import pytest
import torch
from decode_models import prompts, tiny

from dare_job.bench.sampling.paths import PathsEngine, SamplingPathsEngine
from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import EngineSettings, Warp


@pytest.fixture(scope="module")
def pair():
    """A target and a draft model that says nearly the same."""
    near = tiny("llama")
    with torch.no_grad():
        for weight in near.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return Target(tiny("llama")), Target(near)


@pytest.mark.parametrize("shape", ["3x2", "2x1x2", "1x1x1"])
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_the_same_tokens_by_the_same_steps(pair, shape, temperature):
    """More rows than slots, of many lengths, so that slots change hands."""
    target, draft = pair
    settings = EngineSettings(batch_size=3, nodes=14, depth=4, score="never")
    rows = [Request(n, text, max_new_tokens=8 + 3 * n) for n, text in enumerate(prompts())]
    given = () if temperature == 0 else (Sampling(Warp(temperature), 3),)
    plain, by_paths = ((Engine, PathsEngine) if temperature == 0 else (SamplingEngine, SamplingPathsEngine))
    found = []
    for kind in (plain, by_paths):
        engine = kind(target, settings, *given, ModelDrafter(draft, shape))
        found.append({result.id: result for result in engine.run(rows)})
    assert len(found[0]) == len(rows) and sum(result.accepted_tokens for result in found[0].values()) > 10
    for name, result in found[0].items():
        assert np.array_equal(result.token_ids, found[1][name].token_ids)
        assert np.array_equal(result.step_tokens, found[1][name].step_tokens)
    widths = [int(width) for width in shape.split("x")]
    assert engine.rows_read > 0 and engine.queries_read <= engine.rows_read * (1 + len(widths))
    if shape == "3x2":
        steps = sum(result.target_steps for result in found[1].values())
        assert engine.rows_read > 3 * steps  # six paths where a row has room for the tree
