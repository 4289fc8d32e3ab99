"""Warping: turns logits into the probabilities to sample from, for target and draft model alike.

Order, meaning and ties are those of ``generate`` in transformers: logit bias, repetition penalty,
temperature, top-k, top-p, min-p. A constraint is applied before, as -inf in the logits.
"""

import math
from collections.abc import Callable

import numpy as np
import torch

from dare_job.decode.settings import Warp
from dare_job.errors import ConfigError

# Logits (T, V), rows (T,) and number of tokens (T,) before the next one -> logits, -inf for forbidden tokens.
Constraint = Callable[[torch.Tensor, np.ndarray, np.ndarray], torch.Tensor]

_FORBIDDEN = -math.inf


def warp(logits: torch.Tensor, settings: Warp,
         text_tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return warped probabilities and whether the logits of each node are finite.

    Parameters
    ----------
    logits : float32 (N, V)
    settings
        How to warp.
    text_tokens : int64 (N, L)
        Tokens of each node's text padded with -1; needed for the repetition penalty only.

    Returns
    -------
    probabilities : float32 (N, V)
        Zeros for a node whose logits hold NaN, +inf or only -inf.
    finite : bool (N,)
        Whether the node can be sampled from.

    Raises
    ------
    ConfigError
        A bias is for a token outside the vocabulary, or text_tokens is missing.
    """
    scores = _penalised(_biased(logits, settings), settings, text_tokens)
    if settings.greedy:
        peaks, finite = scores.argmax(-1, keepdim=True), _finite(scores)
        return torch.zeros_like(scores).scatter_(1, peaks, 1.0) * finite[:, None], finite
    if settings.temperature != 1:
        scores = scores / settings.temperature
    finite = _finite(scores)
    scores = _truncated(torch.where(finite[:, None], scores, 0.0), settings)
    return torch.softmax(scores, -1) * finite[:, None], finite


def _finite(scores: torch.Tensor) -> torch.Tensor:
    return scores.amax(-1).isfinite()  # amax returns NaN if there is one


def _biased(scores: torch.Tensor, settings: Warp) -> torch.Tensor:
    if not settings.logit_bias:
        return scores
    bias = scores.new_zeros(scores.shape[-1])
    tokens = list(settings.logit_bias)
    if max(tokens) >= len(bias):
        raise ConfigError(f"logit_bias names token {max(tokens)}, but the vocabulary has {len(bias)} tokens")
    bias[tokens] = torch.tensor([float(settings.logit_bias[token]) for token in tokens], device=scores.device)
    return scores + bias


def _penalised(scores: torch.Tensor, settings: Warp, text_tokens: torch.Tensor | None) -> torch.Tensor:
    if settings.repetition_penalty == 1:
        return scores
    if text_tokens is None:
        raise ConfigError("repetition_penalty needs the tokens of each node's text; pass text_tokens")
    width = scores.shape[-1]
    has_logit = (text_tokens >= 0) & (text_tokens < width)  # tokens may have an embedding but no logit
    present = torch.where(has_logit, text_tokens, width)
    marks = scores.new_zeros((len(scores), width + 1), dtype=torch.bool).scatter_(1, present, True)[:, :width]
    changed = torch.where(scores < 0, scores * settings.repetition_penalty,
                          scores / settings.repetition_penalty)
    return torch.where(marks, changed, scores)


def _truncated(scores: torch.Tensor, settings: Warp) -> torch.Tensor:
    if settings.top_k:
        threshold = scores.topk(min(settings.top_k, scores.shape[-1])).values[:, -1:]
        scores = scores.masked_fill(scores < threshold, _FORBIDDEN)
    if settings.top_p is not None and settings.top_p < 1:
        ascending, order = scores.sort(-1)
        dropped = ascending.softmax(-1).cumsum(-1) <= 1 - settings.top_p
        dropped[:, -1] = False
        scores = scores.masked_fill(dropped.scatter(1, order, dropped), _FORBIDDEN)
    if settings.min_p:
        probabilities = scores.softmax(-1)
        peaks = probabilities.amax(-1, keepdim=True)
        scores = scores.masked_fill(probabilities < settings.min_p * peaks, _FORBIDDEN)
    return scores
