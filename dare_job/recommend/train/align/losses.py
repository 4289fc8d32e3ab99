"""Losses between a draft q and a target p at places: tensors in, a number a place out, with gradients of q.

log_q, log_p  float (..., C): log-probabilities over the whole vocabulary, of the C codes of the place's level
valid         bool (..., C): codes that lead to an item; other codes are never said, so they are not aligned
"""

import torch


def at_speed_s(log_q: torch.Tensor, log_p: torch.Tensor, log_p_k: torch.Tensor, valid: torch.Tensor,
               k: int, density: bool = True) -> torch.Tensor:
    """AtSpeed-S: sum_V q log(q / p) - sum_V q log(q / p_K) over V, the valid codes that are the top K of q.

    log_p_k  (...): of the K-th sequence under p, at this level behind its own prefix
    density  False: without the second term ("w/o DR"), which leaves the reverse KL over V
    Lin et al. 2024, "Efficient inference for LLM-based generative recommendation", equation 4. The q log q of
    the two terms cancel: what is left, sum_V q (log p_K - log p), moves q to codes that p ranks above its
    K-th sequence, the best of them most. So it seeks a mode, and needs the recommendation loss beside it.
    """
    log_q, log_p, there = _top(log_q, valid, k, log_q, log_p)
    q = log_q.exp() * there
    reference = log_p_k[..., None] if density else log_q
    return (q * (reference - log_p)).sum(-1)


def at_speed_r(log_q: torch.Tensor, log_p: torch.Tensor, valid: torch.Tensor, k: int) -> torch.Tensor:
    """AtSpeed-R: 1/2 sum_V |p' - q'| over V, the valid codes that are the top K of p, each with sum 1 there.

    Equation 8 of the same paper: what relaxed sampling accepts of one draw is 1 minus it.
    """
    log_q, log_p, there = _top(log_p, valid, k, log_q, log_p)
    q, p = (one.masked_fill(~there, -torch.inf).softmax(-1) for one in (log_q, log_p))
    return 0.5 * (p - q).abs().sum(-1)


def word_kd(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """KL(p || q), all tokens of other levels counted as one (Hinton et al. 2015, Sanh et al. 2019)."""
    log_q, log_p = _with_rest(log_q), _with_rest(log_p)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def tvd_kd(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """1/2 sum |p - q|, all tokens of other levels counted as one (Wen et al. 2023)."""
    return 0.5 * (_with_rest(log_p).exp() - _with_rest(log_q).exp()).abs().sum(-1)


def likelihood(log_q: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """-log q of the codes (...) that come next: SFT and SeqKD, and the recommendation loss."""
    return -log_q.gather(-1, codes[..., None])[..., 0]


def _top(by: torch.Tensor, valid: torch.Tensor, k: int, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The places of the K largest valid ones, in each of the others; last, which of them are valid."""
    best = by.detach().masked_fill(~valid, -torch.inf).topk(min(k, by.shape[-1])).indices
    return *(other.gather(-1, best) for other in others), valid.gather(-1, best)


def _with_rest(logs: torch.Tensor) -> torch.Tensor:
    """One place more, for what the codes leave to all other tokens."""
    rest = torch.log1p(-logs.exp().sum(-1, keepdim=True).clamp_max(1 - 1e-6))
    return torch.cat((logs, rest), -1)
