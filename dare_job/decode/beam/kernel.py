"""The kernel: drafts of one law become outputs of another, several from each row's drafts.

For one row, with p the target's law of a layer, q the drafts', O the outputs so far::

    O = (), r = p, s = q
    for each draft x, while outputs are wanted:
        accept it with probability min(1, r(x) / s(x))
        accepted:  O gets x;  r = p, or p without what is in O
        rejected:  r = norm(r - s)+
        drafts without replacement: s = norm(s without x)
    what is still wanted: one from r, the others from p, or p without what is in O

The outputs have the law of as many draws from p, independent or without replacement, whichever of both the
drafts are: Qin et al., "Dynamic-Width Speculative Beam Decoding" (AAAI 2025), section 3.1, where the ratio is
printed upside down, and algorithm 1. A single output is recursive rejection sampling.

A row's outputs may be one fewer than drafts, or all of them; its width may hang on p and q, never on what the
drafts turned out to be. Outcomes are numbers in [0, S). Laws are float64 (R, S), rows of sum 1.

The law of a layer: which beam goes on, and with which token.

p_beam(i, v) = warp[P(x_i) p(v | x_i) / sum], over all input beams i and tokens v at once (Qin et al., section
2.1): temperature, top-k and top-p act on pairs. Two beams of the same text are two beams: each has its mass.
"""

from typing import NamedTuple

import torch

from dare_job.decode.sampling.distributions import (
    DISTRIBUTIONS,
    NONE,
    DraftDistribution,
    distribution_for,
    sample_tokens,
    without,
)
from dare_job.decode.sampling.rules import acceptance_ratio, gather_at, normalised
from dare_job.decode.sampling.warp import warp
from dare_job.decode.settings import Warp
from dare_job.errors import ConfigError

IID, WITHOUT_REPLACEMENT = "iid", "without_replacement"

DISTRIBUTION_NAMES = (IID, WITHOUT_REPLACEMENT)


def beam_distribution_for(name: str, setting: str = "beam.law") -> DraftDistribution:
    """A law of drafts or outputs by its name. Raises ConfigError where the kernel does not know it."""
    if name not in DISTRIBUTION_NAMES:
        raise ConfigError(f"{setting} = {name!r}: beams are drawn {' or '.join(DISTRIBUTION_NAMES)}")
    return distribution_for(name)


class VerifiedDrafts(NamedTuple):
    """What became of R rows' n drafts.

    accepted  bool (R, n)
    chances   float64 (R, n): probability of the acceptance that was decided; 0 where there was none to decide
    owed      float64 (R, S): r, the law of the first output that is still wanted
    """

    accepted: torch.Tensor
    chances: torch.Tensor
    owed: torch.Tensor

    @property
    def counts(self) -> torch.Tensor:
        """int64 (R,): accepted drafts."""
        return self.accepted.sum(-1)


def verify(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, uniforms: torch.Tensor,
          widths: torch.Tensor, outputs: str, drawn: str) -> VerifiedDrafts:
    """Accept and reject drafts int64 (R, n), NONE where there is none, by uniforms (R, n).

    widths int64 (R,): outputs wanted; outputs, drawn: ``IID`` or ``DISTINCT``, of target and drafts.
    """
    owed, s, taken = p, q, torch.full_like(drafts, NONE)
    accepted, chances = torch.zeros_like(drafts, dtype=torch.bool), torch.zeros_like(uniforms)
    for j in range(drafts.shape[1]):
        token = drafts[:, j]
        asked = (token >= 0) & (accepted.sum(-1) < widths)
        chance = acceptance_ratio(gather_at(owed, token), gather_at(s, token)) * asked
        yes = asked & (uniforms[:, j] < chance)
        accepted[:, j], chances[:, j] = yes, chance
        taken[:, j] = torch.where(yes, token, NONE)
        no = asked & ~yes
        if no.any():
            owed = torch.where(no[:, None], normalised((owed - s).clamp_min(0), owed), owed)
        if yes.any():
            rest = normalised(_remaining(p, taken[:, : j + 1], outputs))
            owed = torch.where(yes[:, None], rest, owed)
        if drawn == WITHOUT_REPLACEMENT:
            s = normalised(without(s, token[:, None]))
    return VerifiedDrafts(accepted, chances, owed)


def complete(p: torch.Tensor, judged: VerifiedDrafts, drafts: torch.Tensor, uniforms: torch.Tensor,
             widths: torch.Tensor, outputs: str) -> torch.Tensor:
    """Outputs int64 (R, W): the accepted drafts in their order, then what was still wanted; NONE behind.

    uniforms (R, W), others than those that judged; W is the greatest width.
    """
    most, counts = uniforms.shape[1], judged.counts
    found = compact(torch.where(judged.accepted, drafts, NONE), most)
    for place in range(most):
        wanted = (counts <= place) & (place < widths)
        if not wanted.any():
            continue
        weights = next_output_weights(p, judged.owed, found[:, :place], counts == place, outputs)
        found[:, place] = torch.where(wanted, sample_tokens(weights, uniforms[:, place]), found[:, place])
    return found


def next_output_weights(p: torch.Tensor, owed: torch.Tensor, earlier: torch.Tensor, first: torch.Tensor,
               outputs: str) -> torch.Tensor:
    """Weights (R, S) of the next output behind ``earlier`` (R, k): ``owed`` where it is the first (R,) one
    that no draft gave.
    """
    return torch.where(first[:, None], owed, _remaining(p, earlier, outputs))


def compact(values: torch.Tensor, most: int) -> torch.Tensor:
    """Values int64 (R, n) that are not NONE, in their order, as (R, most)."""
    there = values >= 0
    places = torch.where(there, there.cumsum(-1) - 1, most).clamp_max(most)
    found = values.new_full((len(values), most + 1), NONE)
    return found.scatter(1, places, torch.where(there, values, NONE))[:, :most]


def surviving_drafts(q: torch.Tensor, drafts: torch.Tensor, alive: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, drafts and the mass that they keep where some parents were rejected: their drafts are dropped, and q
    is what is left, normalised.

    q (R, S), drafts (R, n), alive bool (R, S) -> q (R, S), drafts (R, n), mass (R,). Drafts of rejected
    parents could as well count as rejected with q left as it is. A mix of both is wrong: q renormalised with
    the drafts counted, or the drafts dropped with q as it is.
    """
    kept = q * alive
    there = drafts >= 0
    living = there & alive.gather(1, drafts.clamp_min(0))
    return normalised(kept), torch.where(living, drafts, NONE), kept.sum(-1)


def _remaining(p: torch.Tensor, taken: torch.Tensor, outputs: str) -> torch.Tensor:
    return DISTRIBUTIONS[outputs].after(p, taken, taken.shape[1])


def log_likelihoods(likelihoods: torch.Tensor, logits: torch.Tensor,
                    banned: torch.Tensor | None = None) -> torch.Tensor:
    """log P(x_i) + log p(v | x_i), (R, B, V), of log P (R, B), in its type, and logits float32 (R, B, V).

    A beam that is not there has log P = -inf. banned bool (R, V): tokens that may not come; the others keep
    their p, as in ``generate``.
    """
    scores = torch.log_softmax(logits.to(likelihoods.dtype), -1)
    if banned is not None:
        scores = scores.masked_fill(banned[:, None], -torch.inf)
    return torch.where(likelihoods[..., None] > -torch.inf, scores + likelihoods[..., None], -torch.inf)


def beam_distribution(scores: torch.Tensor, settings: Warp) -> tuple[torch.Tensor, torch.Tensor]:
    """p_beam float64 (R, B * V) of ``log_likelihoods``, and whether it is a law, bool (R,)."""
    return warp(scores.flatten(1), settings)
