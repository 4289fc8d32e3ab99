"""Settings of an alignment.

How far a draft's beams hold the target's: what strict verification would accept of a first draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.trie import NONE, Trie
from dare_job.errors import ConfigError
from dare_job.training.align.branches import USERS, Engine, plain
from dare_job.training.checks import require_at_least, require_rate

LOSSES = {"s": "AtSpeed-S", "r": "AtSpeed-R", "sft": "SFT", "wordkd": "WordKD", "tvdkd": "TVDKD",
          "seqkd": "SeqKD"}

ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)  # that are searched: those of the paper, and one more


@dataclass(frozen=True)
class Settings:
    """The defaults take some ten minutes on one core for Amazon Beauty.

    loss            one of ``LOSSES``
    alpha           share of the alignment loss, the rest is the recommendation loss; None: searched
    k               sequences that are aligned of each history, and codes of a place
    mix             share of the target in the law that drafts S's data; the rest is the draft's
    density         False: S without its density term
    top_one         the first sequence alone is aligned on, not K
    all_steps       prefixes of every beam step are aligned on too, not whole ids alone
    constrained     False: all codes of a level, not the valid ones among the top K
    keep_last       the last epoch's weights stay, though none be better than the start's: what a loss does
    examples        histories to learn from, at most; held_out: those that the result is measured on
    beams           of the draft, in which the target's top K are looked for: N
    dropout         of embeddings and each layer's outputs while it learns
    """

    loss: str = "r"
    alpha: float | None = 0.9
    k: int = 10
    mix: float = 0.5
    density: bool = True
    top_one: bool = False
    all_steps: bool = False
    constrained: bool = True
    keep_last: bool = False
    examples: int = 8000
    held_out: int = 256
    beams: int = 40
    epochs: int = 6
    patience: int = 3
    batch: int = 32
    rate: float = 2e-4
    weight_decay: float = 0.01
    warmup: int = 100
    dropout: float = 0.1
    seed: int = 0

    def __post_init__(self):
        if self.loss not in LOSSES:
            raise ConfigError(f"--loss {self.loss!r}: choose one of {', '.join(LOSSES)}")
        require_at_least(self, k=1, examples=1, held_out=1, beams=1, epochs=1, patience=1, batch=1, warmup=0,
                         seed=0)
        for name in ("alpha", "mix"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"--{name} is {getattr(self, name):g}; it must be from 0 to 1")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"--dropout is {self.dropout:g}; it must be from 0 to below 1")
        require_rate(self.rate)
        if not 0 <= self.weight_decay < 1:
            raise ConfigError(f"--weight-decay is {self.weight_decay:g}; it must be from 0 to below 1")
        if self.beams < self.k:
            raise ConfigError(f"--beams {self.beams} is below --k {self.k}: a draft of fewer beams never "
                              "holds the target's top K")


def prefixes(by: Engine, trie: Trie, histories: Sequence[np.ndarray], width: int) -> np.ndarray:
    """The best nodes int64 (U, L - 1, W) of each level but the last, NONE where there are fewer."""
    search, queries = plain(by, trie, width), [Query(by[1].prompt(history)) for history in histories]
    found = [search.search(queries[at:at + USERS]).prefixes for at in range(0, len(queries), USERS)]
    return np.concatenate(found)[:, :-1]


def accepted_steps(wanted: np.ndarray, drafted: np.ndarray) -> np.ndarray:
    """Of each user the leading levels whose K wanted prefixes are all among the N drafted ones, int64 (U).

    ``prefixes`` of target and draft. At most L - 1: the target's forward gives the last step itself.
    """
    held = (wanted[..., None] == drafted[:, :, None]).any(-1) | (wanted == NONE)
    return np.logical_and.accumulate(held.all(-1), axis=1).sum(1)
