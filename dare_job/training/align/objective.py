"""The alignment loss of a draft recommender q with its target p (AtSpeed and baselines).

The losses take tensors and return one value per place, float (...), with gradients of q. Common arguments:

log_q, log_p : float (..., C)
    Log-probabilities of the C codes of the place's level, normalized over all tokens.
valid : bool (..., C)
    Codes that lead to an item; others are never generated, so they are not aligned.
"""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.trie_search.trie import ROOT, Vocabulary
from dare_job.training.align.branches import NEVER, Scorer, log_probabilities
from dare_job.training.align.settings import Settings
from dare_job.training.align.teacher_paths import TeacherPaths


def at_speed_s(log_q: torch.Tensor, log_p: torch.Tensor, log_p_k: torch.Tensor, valid: torch.Tensor,
               k: int, density: bool = True) -> torch.Tensor:
    """AtSpeed-S: sum_V q log(q / p) - sum_V q log(q / p_K) over V, the valid codes among the top K of q.

    Equation 4 of Lin et al. 2024, "Efficient inference for LLM-based generative recommendation". The q log q
    of the two terms cancel. The remainder, sum_V q (log p_K - log p), moves q to codes that p ranks above its
    K-th sequence, so the loss is mode-seeking and needs the recommendation loss beside it.

    Parameters
    ----------
    log_q, log_p, valid : (..., C)
    log_p_k : float (...)
        Log p of the K-th sequence at this level, after its own prefix.
    density
        False drops the second term ("w/o DR"), which leaves the reverse KL over V.

    Returns
    -------
    loss : float (...)
    """
    log_q, log_p, kept = _top(log_q, valid, k, log_q, log_p)
    q = log_q.exp() * kept
    reference = log_p_k[..., None] if density else log_q
    return (q * (reference - log_p)).sum(-1)


def at_speed_r(log_q: torch.Tensor, log_p: torch.Tensor, valid: torch.Tensor, k: int) -> torch.Tensor:
    """AtSpeed-R: 1/2 sum_V |p' - q'| over V, the valid codes among the top K of p, both normalized over V.

    Equation 8 of the same paper. Relaxed sampling accepts one sample with probability 1 minus this. Arguments
    are (..., C), the result is float (...).
    """
    log_q, log_p, kept = _top(log_p, valid, k, log_q, log_p)
    q, p = (logs.masked_fill(~kept, -torch.inf).softmax(-1) for logs in (log_q, log_p))
    return 0.5 * (p - q).abs().sum(-1)


def word_kd(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """KL(p || q), with all tokens of other levels as one (Hinton et al. 2015, Sanh et al. 2019).

    Arguments are (..., C), the result is float (...).
    """
    log_q, log_p = _with_rest(log_q), _with_rest(log_p)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def tvd_kd(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """1/2 sum |p - q|, with all tokens of other levels as one (Wen et al. 2023). Shapes as in ``word_kd``."""
    return 0.5 * (_with_rest(log_p).exp() - _with_rest(log_q).exp()).abs().sum(-1)


def likelihood(log_q: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """-log q, float (...), of the next codes int64 (...): SFT, SeqKD and the recommendation loss."""
    return -log_q.gather(-1, codes[..., None])[..., 0]


def _top(scores: torch.Tensor, valid: torch.Tensor, k: int,
         *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Values of ``others`` at the K largest valid scores, and finally whether each of them is valid."""
    best = scores.detach().masked_fill(~valid, -torch.inf).topk(min(k, scores.shape[-1])).indices
    return *(other.gather(-1, best) for other in others), valid.gather(-1, best)


def _with_rest(logs: torch.Tensor) -> torch.Tensor:
    """Append the log of the total probability of all other tokens."""
    rest = torch.log1p(-logs.exp().sum(-1, keepdim=True).clamp_max(1 - 1e-6))
    return torch.cat((logs, rest), -1)


def objective(draft: Scorer, vocabulary: Vocabulary, histories: Sequence[np.ndarray], paths: TeacherPaths,
              settings: Settings) -> torch.Tensor:
    """alpha L_align + (1 - alpha) L_rec, averaged over the batch's places, with gradients of the draft.

    L_rec is the cross-entropy of the real next items. WordKD and TVDKD align on the places of those items,
    the others on the teacher's sequences; SFT is L_rec alone.

    Parameters
    ----------
    vocabulary
        The trie with codes instead of tokens, on the draft's device.
    histories
        Item rows int (n,) of each of B users.
    paths
        Of the same B users.

    Returns
    -------
    loss : float32 ()
    """
    codes = paths.codes.long().to(draft[0].device)
    log_q = log_probabilities(*draft, histories, codes)
    recommending = likelihood(log_q[:, -1], codes[:, -1]).mean()
    if settings.loss == "sft":
        return recommending
    aligning = _aligning(log_q, codes, paths, vocabulary, settings)
    return settings.alpha * aligning + (1 - settings.alpha) * recommending


def _aligning(log_q: torch.Tensor, codes: torch.Tensor, paths: TeacherPaths, vocabulary: Vocabulary,
              settings: Settings) -> torch.Tensor:
    log_p = paths.log_p.float().to(log_q.device)
    if settings.loss in ("wordkd", "tvdkd"):
        loss = word_kd if settings.loss == "wordkd" else tvd_kd
        return loss(log_q[:, -1], log_p[:, -1]).mean()
    log_q, log_p, codes = log_q[:, :-1], log_p[:, :-1], codes[:, :-1]  # without the real next item
    if settings.constrained and settings.loss != "seqkd":
        valid, k = _valid(codes, vocabulary, log_q.shape[-1]), settings.k
    else:
        valid, k = log_q != NEVER, log_q.shape[-1]
    if settings.loss == "seqkd":
        losses = likelihood(log_q, codes)
    elif settings.loss == "s":
        losses = at_speed_s(log_q, log_p, paths.log_p_k[:, :-1].to(log_q.device), valid, k, settings.density)
    else:
        losses = at_speed_r(log_q, log_p, valid, k)
    counted = paths.counted[:, :-1].to(log_q.device)
    return (losses * counted).sum() / counted.sum().clamp_min(1)


def _valid(codes: torch.Tensor, vocabulary: Vocabulary, max_codes: int) -> torch.Tensor:
    """Codes that lead to an item after each prefix, bool (B, S, L, C)."""
    nodes, valid = torch.full_like(codes[..., 0], ROOT), []
    for code in codes.unbind(-1):
        children, exists = vocabulary.children(nodes)
        tokens = vocabulary.token[children]  # a place without a child repeats the first child
        none = torch.zeros(*nodes.shape, max_codes, dtype=torch.bool, device=codes.device)
        valid.append(none.scatter(-1, tokens, True))
        chosen = ((tokens == code[..., None]) & exists).int().argmax(-1, keepdim=True)
        nodes = children.gather(-1, chosen)[..., 0]  # without a match the first child, which is masked
    return torch.stack(valid, 2)
