"""The law of a layer: which beam goes on, and with which token.

p_beam(i, v) = warp[P(x_i) p(v | x_i) / sum], over all input beams i and tokens v at once (Qin et al., section
2.1): temperature, top-k and top-p act on pairs. Two beams of the same text are two beams: each has its mass.
"""

import torch

from dare_job.decode.sampling.warp import Warp, warp


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


def beam_law(scores: torch.Tensor, settings: Warp) -> tuple[torch.Tensor, torch.Tensor]:
    """p_beam float64 (R, B * V) of ``log_likelihoods``, and whether it is a law, bool (R,)."""
    return warp(scores.flatten(1), settings)
