"""Warping: logits to the probabilities that are sampled, of the target and of the draft alike.

Order, meaning and ties are those of ``generate`` of transformers: bias, repetition penalty, temperature,
top-k, top-p, min-p. A constraint is -inf in the logits, before they come here.
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
         seen: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities float32 (N, V) of logits float32 (N, V), and whether a node has any, bool (N,).

    seen    int64 (N, L): the tokens of each node's text, -1 where it is shorter; for the penalty alone

    A node with a NaN, with infinity, or with nothing but -inf has the probabilities 0: nothing can be drawn
    from it. ConfigError where a bias is of a token that the vocabulary does not hold, or ``seen`` is missing.
    """
    scores = _penalised(_biased(logits, settings), settings, seen)
    if settings.greedy:
        peaks, sound = scores.argmax(-1, keepdim=True), _finite(scores)
        return torch.zeros_like(scores).scatter_(1, peaks, 1.0) * sound[:, None], sound
    if settings.temperature != 1:
        scores = scores / settings.temperature
    sound = _finite(scores)
    scores = _truncated(torch.where(sound[:, None], scores, 0.0), settings)
    return torch.softmax(scores, -1) * sound[:, None], sound


def _finite(scores: torch.Tensor) -> torch.Tensor:
    return scores.amax(-1).isfinite()  # a NaN is the greatest


def _biased(scores: torch.Tensor, settings: Warp) -> torch.Tensor:
    if not settings.logit_bias:
        return scores
    bias = scores.new_zeros(scores.shape[-1])
    tokens = list(settings.logit_bias)
    if max(tokens) >= len(bias):
        raise ConfigError(f"logit_bias is of token {max(tokens)}: the vocabulary has {len(bias)}")
    bias[tokens] = torch.tensor([float(settings.logit_bias[token]) for token in tokens], device=scores.device)
    return scores + bias


def _penalised(scores: torch.Tensor, settings: Warp, seen: torch.Tensor | None) -> torch.Tensor:
    if settings.repetition_penalty == 1:
        return scores
    if seen is None:
        raise ConfigError("repetition_penalty needs the tokens of each node's text")
    width = scores.shape[-1]
    known = torch.where((seen >= 0) & (seen < width), seen, width)  # some tokens have an embedding alone
    marks = scores.new_zeros((len(scores), width + 1), dtype=torch.bool).scatter_(1, known, True)[:, :width]
    changed = torch.where(scores < 0, scores * settings.repetition_penalty,
                          scores / settings.repetition_penalty)
    return torch.where(marks, changed, scores)


def _truncated(scores: torch.Tensor, settings: Warp) -> torch.Tensor:
    if settings.top_k:
        least = scores.topk(min(settings.top_k, scores.shape[-1])).values[:, -1:]
        scores = scores.masked_fill(scores < least, _FORBIDDEN)
    if settings.top_p is not None and settings.top_p < 1:
        rising, order = scores.sort(-1)
        dropped = rising.softmax(-1).cumsum(-1) <= 1 - settings.top_p
        dropped[:, -1] = False
        scores = scores.masked_fill(dropped.scatter(1, order, dropped), _FORBIDDEN)
    if settings.min_p:
        shares = scores.softmax(-1)
        peaks = shares.amax(-1, keepdim=True)
        scores = scores.masked_fill(shares < settings.min_p * peaks, _FORBIDDEN)
    return scores
