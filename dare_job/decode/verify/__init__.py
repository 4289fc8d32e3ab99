"""Rules: scores (T, V) and a tree in, what passes out. Pure functions of tensors."""

from collections.abc import Callable
from functools import partial

import torch

from dare_job.decode.verify import relaxed, strict
from dare_job.decode.verify.verdict import Judgement

Verifier = Callable[..., Judgement]  # of scores, tree, and which rows are strict whatever the rule


def verifier(rule: str, k: int, p: float, eos: torch.Tensor) -> Verifier:
    """The verifier of a rule; ``eos`` int64 (E,) on the target's device."""
    if rule == "strict":
        return strict.verify
    return partial(relaxed.verify, rule=rule, k=k, p=p, eos=eos)
