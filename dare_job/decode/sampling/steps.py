"""What a rule is made of: steps that accept the next candidate, or reject it and go on.

A rule says with what probability each candidate is accepted when all before it were rejected, and which law
the emitted token has when all were. ``verify.py`` runs these steps by chance, or along both ways at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dare_job.decode.sampling.laws import Law


class State(NamedTuple):
    """R rows in which all candidates so far were rejected. Tensors on one device.

    p           float64 (R, V): law of the token that is still owed
    q           float64 (R, V): for the rule itself
    s           float64 (R, V): law of the next candidate, or of the one that counts; zeros: none. Or what the
                rule says of each token
    candidates  int64 (R, n), NONE behind the support; in the order in which the rule asks them
    extra       float64 (R,): a number of the rule's own
    """

    p: torch.Tensor
    q: torch.Tensor
    s: torch.Tensor
    candidates: torch.Tensor
    extra: torch.Tensor

    def rows(self, which: torch.Tensor) -> "State":
        return State(*(field[which] for field in self))


@dataclass(frozen=True)
class Rule:
    """A verifier of one node's candidates.

    laws      names of the draft laws that it is exact for: its output is of the law p
    start     of law, p, q (normalised float64) and candidates: the first ``State``
    accept    of a state and a place j: probability (R,) of accepting candidate j
    reject    of law, state and j: the state behind its rejection
    residual  of the last state: weights (R, V) of the token that is emitted then, not normalised
    only      the one number of candidates that it takes; None: any
    reads_q   or it does as well without
    """

    name: str
    laws: tuple[str, ...]
    start: Callable[[Law, torch.Tensor, torch.Tensor, torch.Tensor], State]
    accept: Callable[[State, int], torch.Tensor]
    reject: Callable[[Law, State, int], State]
    residual: Callable[[State], torch.Tensor]
    only: int | None = None
    reads_q: bool = True


def normalised(weights: torch.Tensor, otherwise: torch.Tensor | None = None) -> torch.Tensor:
    """Rows (R, V) that sum to 1. Those without mass are taken from ``otherwise``, or stay as they are."""
    totals = weights.sum(-1, keepdim=True)
    shares = weights / torch.where(totals == 0, 1.0, totals)
    return shares if otherwise is None else torch.where(totals == 0, otherwise, shares)


def at(weights: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Entries (R,) of (R, V) at tokens int64 (R,); 0 where there is no token."""
    return weights.gather(1, tokens.clamp_min(0)[:, None])[:, 0] * (tokens >= 0)


def ratio(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """min(1, p / q); 0 where q is 0, as such a candidate was never drawn."""
    return torch.where(q > 0, p / torch.where(q > 0, q, 1.0), 0.0).clamp_max(1.0)
