"""Warping: logits to the probabilities that are sampled, of the target and of the draft alike.

Order, meaning and ties are those of ``generate`` of transformers: bias, repetition penalty, temperature,
top-k, top-p, min-p. A constraint is -inf in the logits, before they come here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

import numpy as np
import torch

from dare_job.errors import ConfigError

# Logits (T, V), rows (T,) and number of tokens (T,) before the next one -> logits, -inf for forbidden tokens.
Constraint = Callable[[torch.Tensor, np.ndarray, np.ndarray], torch.Tensor]

_FORBIDDEN = -math.inf
MIN_TEMPERATURE = 1e-6  # temperature
# With these a logit of any use stays a number of float32, whatever the settings do to it one after the other.
MAX_BIAS, MIN_PENALTY, MAX_PENALTY = 1e4, 1e-3, 1e3


@dataclass(frozen=True)
class Warp:
    """Settings of sampling; the defaults change nothing.

    temperature         0: the most probable token alone, of equals the first; top_k to min_p then say
                        nothing. Else at least 1e-6: below, float32 has no numbers for what is left
    top_k               tokens that are kept, with those that equal the last; None or 0: all
    top_p               kept are the most probable up to this mass; None or 1: all
    min_p               kept are those with this share of the greatest probability; None or 0: all
    repetition_penalty  of tokens that the text holds: their logits are divided by it, multiplied if negative;
                        from 1e-3 to 1e3
    logit_bias          what is added to a token's logit, from -1e4 to 1e4
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, lambda x: x == 0 or x >= MIN_TEMPERATURE,
               f"0 (greedy), or {MIN_TEMPERATURE:g} or above")
        _check("repetition_penalty", self.repetition_penalty, lambda x: MIN_PENALTY <= x <= MAX_PENALTY,
               f"from {MIN_PENALTY:g} to {MAX_PENALTY:g}; 1 is none")
        if self.top_k is not None:
            whole = isinstance(self.top_k, Integral)
            _check("top_k", self.top_k, lambda x: whole and x >= 0, "a whole number from 0 (all), or null")
        for name in ("top_p", "min_p"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), lambda x: 0 <= x <= 1, "from 0 to 1, or null")
        for token, bias in self.logit_bias.items():
            if not isinstance(token, Integral) or token < 0:
                raise ConfigError(f"logit_bias is of token {token!r}: tokens are whole numbers from 0")
            _check(f"logit_bias of token {token}", bias, lambda x: abs(x) <= MAX_BIAS,
                   f"from {-MAX_BIAS:.0f} to {MAX_BIAS:.0f}, which forbids or forces a token well enough")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def of_generate(self) -> dict:
        """The arguments by which ``generate`` writes with the same law."""
        bias = {(int(token),): float(value) for token, value in self.logit_bias.items()}
        drawn = {"temperature": self.temperature, "top_k": self.top_k or 0, "min_p": self.min_p,
                 "top_p": 1.0 if self.top_p is None else self.top_p}
        return {"do_sample": not self.greedy, "num_beams": 1, "sequence_bias": bias or None,
                "repetition_penalty": float(self.repetition_penalty), **({} if self.greedy else drawn)}


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


def _check(name: str, value: object, holds: Callable[[float], bool], needs: str) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not holds(value):
        raise ConfigError(f"{name} is {value!r}: it must be {needs}")
