"""The loss of a batch of lessons: alpha times what aligns, the rest what recommends.

Losses between a draft q and a target p at places: tensors in, a number a place out, with gradients of q.

log_q, log_p  float (..., C): log-probabilities over the whole vocabulary, of the C codes of the place's level
valid         bool (..., C): codes that lead to an item; other codes are never said, so they are not aligned
"""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.trie_search.trie import ROOT, Vocabulary
from dare_job.training.align.branches import NEVER, Scorer, log_probabilities
from dare_job.training.align.options import Settings
from dare_job.training.align.teacher_paths import Lessons


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


def objective(draft: Scorer, view: Vocabulary, histories: Sequence[np.ndarray], lessons: Lessons,
              settings: Settings) -> torch.Tensor:
    """alpha L_align + (1 - alpha) L_rec, a mean over the batch's places, with gradients of the draft.

    L_rec is the cross-entropy of what was really taken. WordKD and TVDKD align on those places, the
    others on the drawn sequences; SFT is L_rec alone. view: the trie with codes for tokens, on the draft's
    device.
    """
    codes = lessons.codes.long().to(draft[0].device)
    log_q = log_probabilities(*draft, histories, codes)
    recommending = likelihood(log_q[:, -1], codes[:, -1]).mean()
    if settings.loss == "sft":
        return recommending
    aligning = _aligning(log_q, codes, lessons, view, settings)
    return settings.alpha * aligning + (1 - settings.alpha) * recommending


def _aligning(log_q: torch.Tensor, codes: torch.Tensor, lessons: Lessons, view: Vocabulary,
              settings: Settings) -> torch.Tensor:
    log_p = lessons.log_p.float().to(log_q.device)
    if settings.loss in ("wordkd", "tvdkd"):
        loss = word_kd if settings.loss == "wordkd" else tvd_kd
        return loss(log_q[:, -1], log_p[:, -1]).mean()
    drawn = slice(None, -1)
    if settings.loss == "seqkd":
        found = likelihood(log_q[:, drawn], codes[:, drawn])
    else:
        valid, k = _valid(codes[:, drawn], view, log_q.shape[-1]), settings.k
        if not settings.constrained:
            valid, k = log_q[:, drawn] != NEVER, log_q.shape[-1]
        if settings.loss == "s":
            log_p_k = lessons.log_p_k[:, drawn].to(log_q.device)
            found = at_speed_s(log_q[:, drawn], log_p[:, drawn], log_p_k, valid, k, settings.density)
        else:
            found = at_speed_r(log_q[:, drawn], log_p[:, drawn], valid, k)
    counted = lessons.counted[:, drawn].to(log_q.device)
    return (found * counted).sum() / counted.sum().clamp_min(1)


def _valid(codes: torch.Tensor, view: Vocabulary, widest: int) -> torch.Tensor:
    """Codes that lead to an item behind each prefix, bool (B, S, L, C)."""
    nodes, found = torch.full_like(codes[..., 0], ROOT), []
    for code in codes.unbind(-1):
        children, there = view.children(nodes)
        said = view.token[children]  # a place without a child repeats the first one's
        found.append(torch.zeros(*nodes.shape, widest, dtype=torch.bool, device=codes.device).scatter(
            -1, said, True))
        taken = ((said == code[..., None]) & there).int().argmax(-1, keepdim=True)
        nodes = children.gather(-1, taken)[..., 0]  # the first where none is, which counts nowhere
    return torch.stack(found, 2)
