"""Shared by the tests of the beam engine: models, and runs of the engine."""

import torch
from decode_models import tiny

from dare_job.decode.beam.drafting import BeamDrafter
from dare_job.decode.beam.engine import BeamEngine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import Beams, EngineSettings


def near(name: str, noise: float, scale: float = 1.0, eos=None, **changes) -> Target:
    """Return ``tiny(name)`` with its weights scaled and noise added."""
    model = tiny(name, **changes)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(scale).add_(noise * torch.randn_like(weight))
    model.generation_config.eos_token_id = eos
    return Target(model)


def write(target: Target, texts, beams: Beams, draft: Target | None = None, **settings):
    """Return results by row number."""
    asked = EngineSettings(**{"max_new_tokens": 20, "batch_size": 3, "score": "never", **settings})
    engine = BeamEngine(target, asked, beams, draft and BeamDrafter(draft))
    return {r.id: r for r in engine.run(Request(i, text) for i, text in enumerate(texts))}
