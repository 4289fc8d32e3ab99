"""What prompts begin with alike, read once: the keys and values of a few prefixes, kept with the model.

Prompts of one template share its head, often behind a chat template's. Among the prompts that wait together,
those that begin alike stand side by side once they are sorted, so the tokens shared by neighbours are all the
prefixes there are. One is kept where leaving it out saves enough of what the prompts would read: a forward
of its own reads it, and costs as much as a good number of tokens whatever its length; rows with another prefix,
or none, cannot share a forward either. Prefixes are few and bounded, the one not used for longest goes first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.scoring import common

HELD = 4  # prefixes
LONGEST = 1024  # tokens of one: keys and values of 4096 tokens at most, as a few rows of a batch have
SHORTEST = 8  # tokens that are worth a mask and a copy; bench.prefix
_FORWARD = 128  # tokens that a forward of its own costs, at least; bench.prefix
_SHARE = 1 / 16  # of the prompts' tokens that a prefix has to save


@dataclass(frozen=True)
class Prefix:
    """tokens int32 (N,); entries: keys and values (layers, heads, N, dim) of each stack of the cache."""

    tokens: np.ndarray
    entries: Sequence[torch.Tensor]

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> "Prefix":
        """Its first tokens: they do not depend on those behind them."""
        return Prefix(self.tokens[:length], [entries[:, :, :length] for entries in self.entries])


class Prefixes:
    """Prefixes of one model, the one used last in front."""

    def __init__(self):
        self._held: list[Prefix] = []
        self._unsound: list[np.ndarray] = []  # keys or values were no numbers

    def learn(self, prompts: Sequence[np.ndarray], read: Callable[[np.ndarray], Sequence[torch.Tensor]]) -> None:
        """Keep what is worth it of what these prompts, each int32 (tokens,), begin with.

        read(tokens) -> its ``entries``, by a forward
        """
        prompts = sorted(prompts, key=lambda prompt: prompt.astype(">i4").tobytes())
        while (tokens := self._worth(prompts)) is not None:
            prefix = Prefix(tokens, read(tokens))
            if all(bool(entries.isfinite().all()) for entries in prefix.entries):
                self._held = [prefix, *self._held][:HELD]
            else:
                self._unsound = [tokens, *self._unsound][:HELD]

    def groups(self, prompts: Sequence[np.ndarray]) -> list[tuple[Prefix | None, np.ndarray]]:
        """Rows of these prompts that begin alike: what they begin with (None: nothing), and their indices.

        Each prompt is longer than its prefix: the last token's logits are needed.
        """
        found = [self._longest(prompt) for prompt in prompts]
        groups = []
        for number in dict.fromkeys(number for number, _ in found):
            rows = np.array([row for row, (other, _) in enumerate(found) if other == number])
            prefix = self._held[number].cut(min(found[row][1] for row in rows)) if number >= 0 else None
            groups.append((prefix, rows))
        used = [self._held[number] for number in dict.fromkeys(n for n, _ in found) if number >= 0]
        self._held = used + [prefix for prefix in self._held if not any(prefix is other for other in used)]
        return groups

    def _longest(self, prompt: np.ndarray) -> tuple[int, int]:
        """Number of the prefix that a prompt shares most of, and how much; (-1, 0) where that is too little."""
        shared = [common(prompt[:-1], prefix.tokens) for prefix in self._held]
        best = int(np.argmax(shared)) if shared else -1
        return (best, shared[best]) if shared and shared[best] >= SHORTEST else (-1, 0)

    def _worth(self, prompts: Sequence[np.ndarray]) -> np.ndarray | None:
        """Tokens of the prefix that saves most of what sorted prompts would read, if that is enough."""
        alike = np.array([min(common(a, b), len(a) - 1, len(b) - 1, LONGEST)
                          for a, b in zip(prompts, prompts[1:], strict=False)], np.int64)
        known = np.array([self._longest(prompt)[1] for prompt in prompts])
        least = max(_FORWARD, _SHARE * sum(len(prompt) for prompt in prompts))
        best, found = least, None
        for place, length in enumerate(alike):
            if length < SHORTEST:
                continue
            shorter = np.flatnonzero(alike < length)  # beside it all prompts begin with these tokens
            first = shorter[shorter < place].max(initial=-1) + 1
            last = shorter[shorter > place].min(initial=len(alike))
            saved = np.maximum(length - known[first : last + 1], 0).sum() - length
            tokens = prompts[place][:length]
            if saved > best and not any(np.array_equal(tokens[: len(bad)], bad) for bad in self._unsound):
                best, found = saved, tokens.copy()
        return found
