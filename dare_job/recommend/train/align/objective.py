"""The loss of a batch of lessons: alpha times what aligns, the rest what recommends."""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.beam.top_k.trie import ROOT, Vocabulary
from dare_job.recommend.train.align import losses
from dare_job.recommend.train.align.branches import NEVER, log_probabilities
from dare_job.recommend.train.align.lessons import Lessons
from dare_job.recommend.train.align.searches import Scorer
from dare_job.recommend.train.align.settings import Settings


def objective(draft: Scorer, view: Vocabulary, histories: Sequence[np.ndarray], lessons: Lessons,
              settings: Settings) -> torch.Tensor:
    """alpha L_align + (1 - alpha) L_rec, a mean over the batch's places, with gradients of the draft.

    L_rec is the cross-entropy of what was really taken. WordKD and TVDKD align on those places, the
    others on the drawn sequences; SFT is L_rec alone. view: the trie with codes for tokens, on the draft's
    device.
    """
    codes = lessons.codes.long().to(draft[0].device)
    log_q = log_probabilities(*draft, histories, codes)
    recommending = losses.likelihood(log_q[:, -1], codes[:, -1]).mean()
    if settings.loss == "sft":
        return recommending
    aligning = _aligning(log_q, codes, lessons, view, settings)
    return settings.alpha * aligning + (1 - settings.alpha) * recommending


def _aligning(log_q: torch.Tensor, codes: torch.Tensor, lessons: Lessons, view: Vocabulary,
              settings: Settings) -> torch.Tensor:
    log_p = lessons.log_p.float().to(log_q.device)
    if settings.loss in ("wordkd", "tvdkd"):
        loss = losses.word_kd if settings.loss == "wordkd" else losses.tvd_kd
        return loss(log_q[:, -1], log_p[:, -1]).mean()
    drawn = slice(None, -1)
    if settings.loss == "seqkd":
        found = losses.likelihood(log_q[:, drawn], codes[:, drawn])
    else:
        valid, k = _valid(codes[:, drawn], view, log_q.shape[-1]), settings.k
        if not settings.constrained:
            valid, k = log_q[:, drawn] != NEVER, log_q.shape[-1]
        if settings.loss == "s":
            log_p_k = lessons.log_p_k[:, drawn].to(log_q.device)
            found = losses.at_speed_s(log_q[:, drawn], log_p[:, drawn], log_p_k, valid, k, settings.density)
        else:
            found = losses.at_speed_r(log_q[:, drawn], log_p[:, drawn], valid, k)
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
