"""Settings of a recommender and its training."""

from dataclasses import dataclass

from dare_job.errors import ConfigError
from dare_job.option_checks import option, require_at_least, require_heads, require_rate


@dataclass(frozen=True)
class Settings:
    """The defaults take some twenty minutes on one core for Amazon Beauty.

    width, layers, heads   of a model made from scratch; its feed-forward is 2.5 times as wide
    lora                   rank of low-rank updates of a given model; 0: all its weights are trained
    history                newest items that a prompt holds
    epochs, patience       at most, and those without a better validation that end it
    batch_tokens           tokens of an update, about
    rate, weight_decay     of AdamW, with a warm-up of ``warmup`` updates and a cosine
    dropout                of embeddings, attention's and feed-forwards' outputs
    item_dropout           share of a history's items that an epoch leaves out: little data goes further
    valid_users            users whose next items decide when to stop
    """

    width: int = 256
    layers: int = 4
    heads: int = 4
    lora: int = 0
    history: int = 20
    epochs: int = 40
    patience: int = 3
    batch_tokens: int = 2048
    rate: float = 1e-3
    weight_decay: float = 0.1
    warmup: int = 200
    dropout: float = 0.2
    item_dropout: float = 0.1
    valid_users: int = 2000
    seed: int = 0

    def __post_init__(self):
        require_at_least(self, width=8, layers=1, heads=1, lora=0, history=1, epochs=1, patience=1,
                         batch_tokens=32, warmup=0, valid_users=1, seed=0)
        require_heads(self.width, self.heads)
        require_rate(self.rate)
        for name in ("dropout", "item_dropout", "weight_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{option(name)} is {getattr(self, name):g}; it must be from 0 to below 1")
