"""What the target says of every token of the texts: its most probable tokens, kept for all epochs.

Settings of a draft model and its training.
"""

import logging
import math
import time
from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError
from dare_job.publish.prompted_texts import Row
from dare_job.training.checks import require_at_least, require_heads, require_rate

KEPT = 16


@dataclass(frozen=True)
class Settings:
    """The defaults take a few minutes on one core for a target of a few thousand tokens.

    width, layers, heads  of the model; its feed-forward is twice as wide
    steps                 updates of about ``batch_tokens``
    kl                    share of the KL in the loss; the rest is cross-entropy of the texts
    rate                  peak learning rate
    context               tokens of a row in training; the beginning of a longer prompt is left out
    temperature           of the target's laws that are learned: that at which it will be sampled, by trees or
                          beams; the texts' cross-entropy stays at 1
    kept                  most probable tokens of a place that are learned one by one; six bytes each
    rows, held_out        texts to learn from, at most, and those that the result is measured on
    """

    width: int = 256
    layers: int = 2
    heads: int = 4
    steps: int = 300
    batch_tokens: int = 2048
    kl: float = 0.5
    rate: float = 4e-3
    context: int = 1024
    rows: int = 20_000
    held_out: int = 32
    seed: int = 0
    temperature: float = 1.0
    kept: int = KEPT

    def __post_init__(self):
        require_at_least(self, width=8, layers=1, heads=1, steps=1, batch_tokens=32, context=32, rows=1,
                         held_out=1, seed=0, kept=1)
        require_heads(self.width, self.heads)
        if not 0 <= self.kl <= 1:
            raise ConfigError(f"--kl is {self.kl:g}; it must be from 0 (texts alone) to 1 (the target's "
                              "probabilities alone)")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"--temperature is {self.temperature:g}; it must be above 0")
        require_rate(self.rate)

_TOKENS = 4096  # of a forward

_LOG_EVERY_S = 10.0

_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Lesson:
    """A row, and what the target says in front of each of its text's T tokens.

    tokens  int32 (T, K), shares float16 (T, K): the most probable and their probabilities; no shares at all
            where nobody knows what the target was asked
    """

    row: Row
    tokens: np.ndarray
    shares: np.ndarray


@torch.inference_mode()
def lessons(target: Target, rows: list[Row], kept: int = KEPT, temperature: float = 1.0) -> list[Lesson]:
    """In the rows' order; so many tokens of each place, by the target's law at this temperature."""
    kept = min(kept, target.vocabulary)
    found: dict[str, Lesson] = {row.name: _untaught(row, kept) for row in rows if not row.asked}
    waiting = sorted((row for row in rows if row.asked), key=lambda row: len(row.prompt) + len(row.text))
    began = told = time.monotonic()
    while waiting:
        longest = len(waiting[-1].prompt) + len(waiting[-1].text)
        part, waiting = _last(waiting, max(1, _TOKENS // longest))
        found.update((lesson.row.name, lesson) for lesson in _of_batch(target, part, kept, temperature))
        if time.monotonic() - told > _LOG_EVERY_S:
            told = time.monotonic()
            _LOG.info("target reads the texts: %d of %d, %.0f s", len(found), len(rows), told - began)
    return [found[row.name] for row in rows]


def _last(rows: list, count: int) -> tuple[list, list]:
    return rows[-count:], rows[:-count]


def _untaught(row: Row, kept: int) -> Lesson:
    shape = len(row.text), kept
    return Lesson(row, np.zeros(shape, np.int32), np.zeros(shape, np.float16))


def _of_batch(target: Target, rows: list[Row], kept: int, temperature: float) -> list[Lesson]:
    lengths = np.array([len(row.prompt) for row in rows], np.int64)
    scored = np.array([len(row.text) - 1 for row in rows], np.int64)
    whole = [np.concatenate((row.prompt, row.text[:-1])) for row in rows]
    ids = np.stack([np.pad(one, (0, max(map(len, whole)) - len(one)), "edge") for one in whole])
    logits = target.prefill(target.new_cache(len(rows)), np.arange(len(rows)), ids, lengths, scored)
    best = torch.softmax(logits.float() / temperature, -1).topk(kept)
    tokens, shares = (x.cpu().numpy() for x in (best.indices.to(torch.int32), best.values.half()))
    ends = np.cumsum(scored + 1)
    return [Lesson(row, tokens[end - len(row.text) : end], shares[end - len(row.text) : end])
            for row, end in zip(rows, ends, strict=True)]
