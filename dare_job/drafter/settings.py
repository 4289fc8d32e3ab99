"""Settings of a draft model and its training."""

import math
from dataclasses import dataclass

from dare_job.errors import ConfigError
from dare_job.option_checks import require_at_least, require_heads, require_rate

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
