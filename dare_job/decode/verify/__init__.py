"""Verification: scores (T, V) and a tree in, what passes out. Pure functions of tensors."""

from collections.abc import Callable
from functools import partial

import torch

from dare_job.decode.request import EngineSettings
from dare_job.decode.verify import relaxed, strict
from dare_job.decode.verify.verdict import Judgement

Verifier = Callable[..., Judgement]  # of scores, tree, and which nodes are strict whatever the rule


def verifier(settings: EngineSettings, eos: torch.Tensor) -> Verifier:
    """The verifier of the settings' rule; ``eos`` int64 (E,) on the target's device."""
    if settings.rule == "strict":
        return strict.verify
    return partial(relaxed.verify, settings=settings, eos=eos)
