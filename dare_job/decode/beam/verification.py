"""The verification of beams: turns drafts of one distribution into several outputs of another.

For one row, with p the target distribution of a layer, q that of the drafts, O the outputs so far::

    O = (), r = p, s = q
    for each draft x, while outputs are needed:
        accept it with probability min(1, r(x) / s(x))
        accepted:  append x to O;  r = p, or p without the tokens in O
        rejected:  r = norm(r - s)+
        drafts without replacement: s = norm(s without x)
    the outputs still needed: one from r, the others from p, or p without the tokens in O

The outputs are distributed like as many samples from p, independent or without replacement, whichever of both
the drafts are: Qin et al., "Dynamic-Width Speculative Beam Decoding" (AAAI 2025), section 3.1 (where the
ratio is printed inverted) and algorithm 1. With a single output this is recursive rejection sampling.

A row's width may depend on p and q only, never on the drafted tokens; otherwise the method would not be
exact. Outcomes are indices in [0, S); distributions are float64 (R, S) with rows of sum 1.

The distribution of a layer is p_beam(i, v) = warp[P(x_i) p(v | x_i) / sum] over all input beams i and tokens
v at once (section 2.1): temperature, top-k and top-p act on pairs. Two beams with the same text count as two.
"""

from typing import NamedTuple

import torch

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, NONE, sample_tokens, without
from dare_job.decode.sampling.rules import acceptance_ratio, gather_at, normalised
from dare_job.decode.sampling.warp import warp
from dare_job.decode.settings import Warp

WITHOUT_REPLACEMENT = "without_replacement"

class VerifiedDrafts(NamedTuple):
    """The verification result for n drafts of R rows.

    Attributes
    ----------
    accepted : bool (R, n)
    probabilities : float64 (R, n)
        Acceptance probability of each draft that was verified, else 0.
    residual : float64 (R, S)
        Distribution r of the first output still needed.
    """

    accepted: torch.Tensor
    probabilities: torch.Tensor
    residual: torch.Tensor

    @property
    def counts(self) -> torch.Tensor:
        """Number of accepted drafts, int64 (R,)."""
        return self.accepted.sum(-1)


def verify(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, uniforms: torch.Tensor,
           widths: torch.Tensor, output_distribution: str, draft_distribution: str) -> VerifiedDrafts:
    """Accept or reject drafts in order.

    Parameters
    ----------
    p, q : float64 (R, S)
        Target and draft distribution.
    drafts : int64 (R, n)
        NONE where there is none.
    uniforms : float64 (R, n)
        In [0, 1).
    widths : int64 (R,)
        Outputs needed.
    output_distribution, draft_distribution
        "iid" or "without_replacement".
    """
    residual, s, accepted_tokens = p, q, torch.full_like(drafts, NONE)
    accepted, probabilities = torch.zeros_like(drafts, dtype=torch.bool), torch.zeros_like(uniforms)
    for j in range(drafts.shape[1]):
        token = drafts[:, j]
        pending = (token >= 0) & (accepted.sum(-1) < widths)
        probability = acceptance_ratio(gather_at(residual, token), gather_at(s, token)) * pending
        accept = pending & (uniforms[:, j] < probability)
        accepted[:, j], probabilities[:, j] = accept, probability
        accepted_tokens[:, j] = torch.where(accept, token, NONE)
        reject = pending & ~accept
        if reject.any():
            rest = normalised((residual - s).clamp_min(0), residual)
            residual = torch.where(reject[:, None], rest, residual)
        if accept.any():
            remaining = normalised(_remaining(p, accepted_tokens[:, : j + 1], output_distribution))
            residual = torch.where(accept[:, None], remaining, residual)
        if draft_distribution == WITHOUT_REPLACEMENT:
            s = normalised(without(s, token[:, None]))
    return VerifiedDrafts(accepted, probabilities, residual)


def complete(p: torch.Tensor, verified: VerifiedDrafts, drafts: torch.Tensor, uniforms: torch.Tensor,
             widths: torch.Tensor, output_distribution: str) -> torch.Tensor:
    """Return the outputs int64 (R, W): accepted drafts in order, then samples; NONE beyond the width.

    uniforms (R, W) must be independent of those of ``verify``; W is the largest width.
    """
    capacity, counts = uniforms.shape[1], verified.counts
    out = compact(torch.where(verified.accepted, drafts, NONE), capacity)
    for place in range(capacity):
        wanted = (counts <= place) & (place < widths)
        if not wanted.any():
            continue
        weights = next_output_weights(p, verified.residual, out[:, :place], counts == place,
                                      output_distribution)
        out[:, place] = torch.where(wanted, sample_tokens(weights, uniforms[:, place]), out[:, place])
    return out


def next_output_weights(p: torch.Tensor, residual: torch.Tensor, earlier: torch.Tensor, first: torch.Tensor,
                        output_distribution: str) -> torch.Tensor:
    """Return weights (R, S) of the output after ``earlier`` (R, k).

    These are the ``residual`` for rows whose ``first`` (R,) output without a draft this is, else p or what
    remains of it.
    """
    return torch.where(first[:, None], residual, _remaining(p, earlier, output_distribution))


def compact(values: torch.Tensor, capacity: int) -> torch.Tensor:
    """Move the values int64 (R, n) that are not NONE to the left, as (R, capacity)."""
    present = values >= 0
    places = torch.where(present, present.cumsum(-1) - 1, capacity).clamp_max(capacity)
    out = values.new_full((len(values), capacity + 1), NONE)
    return out.scatter(1, places, torch.where(present, values, NONE))[:, :capacity]


def surviving_drafts(q: torch.Tensor, drafts: torch.Tensor, alive: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Drop the drafts of rejected parents and renormalise q over the rest.

    Counting such drafts as rejected with q unchanged would be exact as well; mixing both is not.

    Parameters
    ----------
    q : float64 (R, S)
    drafts : int64 (R, n)
    alive : bool (R, S)
        Whether the pair's parent was accepted.

    Returns
    -------
    q, drafts, mass : (R, S)
        (R, n) and the share of q (R,) that remains.
    """
    kept = q * alive
    present = drafts >= 0
    survives = present & alive.gather(1, drafts.clamp_min(0))
    return normalised(kept), torch.where(survives, drafts, NONE), kept.sum(-1)


def _remaining(p: torch.Tensor, accepted_tokens: torch.Tensor, output_distribution: str) -> torch.Tensor:
    return DISTRIBUTIONS[output_distribution].next_weights(p, accepted_tokens, accepted_tokens.shape[1])


def log_likelihoods(likelihoods: torch.Tensor, logits: torch.Tensor,
                    banned: torch.Tensor | None = None) -> torch.Tensor:
    """Return log P(x_i) + log p(v | x_i), (R, B, V).

    Parameters
    ----------
    likelihoods : (R, B)
        Log P of the beams, -inf where there is none; its dtype is the result's.
    logits : float32 (R, B, V)
    banned : bool (R, V)
        Forbidden tokens; the others keep their p, as in ``generate``.
    """
    scores = torch.log_softmax(logits.to(likelihoods.dtype), -1)
    if banned is not None:
        scores = scores.masked_fill(banned[:, None], -torch.inf)
    return torch.where(likelihoods[..., None] > -torch.inf, scores + likelihoods[..., None], -torch.inf)


def beam_distribution(scores: torch.Tensor, settings: Warp) -> tuple[torch.Tensor, torch.Tensor]:
    """Return p_beam float64 (R, B * V) from ``log_likelihoods``, and whether it is finite, bool (R,)."""
    return warp(scores.flatten(1), settings)
