"""What prompts begin with alike, read once: the keys and values of a few prefixes, kept with the model.

Prompts of one template share its head, often behind a chat template's. Among the prompts that wait together,
those that begin alike stand side by side once they are sorted, so the tokens shared by neighbours are all
the prefixes there are. One is kept where leaving it out saves enough of what the prompts would read: a
forward of its own reads it, and costs as much as a good number of tokens whatever its length; rows with
another prefix, or none, cannot share a forward either. Limits: ``bench.prefix``. Prefixes are few and
bounded, the one not used for longest goes first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numba
import numpy as np
import torch


@numba.njit(cache=True)
def common_prefix_length(text, old):
    """Tokens with which both begin."""
    length = min(len(text), len(old))
    for n in range(length):
        if text[n] != old[n]:
            return n
    return length

MAX_PREFIXES = 4  # prefixes

MAX_TOKENS = 1024  # tokens of one: keys and values of 4096 tokens at most, as a few rows of a batch have

MIN_TOKENS = 12  # tokens: fewer do not pay for a mask and a copy behind them

_MIN_SAVED_TOKENS = 128  # a forward of its own costs as much as 50 tokens on a CPU

_MIN_SAVED_SHARE = 1 / 16  # of the prompts' tokens that a prefix has to save


@dataclass(frozen=True)
class Prefix:
    """tokens int32 (N,); entries: keys and values (parts, heads, N, dim) of each stack of the cache."""

    tokens: np.ndarray
    entries: Sequence[torch.Tensor]

    def __len__(self) -> int:
        return len(self.tokens)

    def truncated(self, length: int) -> "Prefix":
        """Its first tokens: they do not depend on those behind them."""
        return Prefix(self.tokens[:length], [entries[:, :, :length] for entries in self.entries])


class PrefixCache:
    """Prefixes of one model, the one used last in front."""

    def __init__(self):
        self._held: list[Prefix] = []
        self._non_finite: list[np.ndarray] = []  # keys or values were no numbers

    def update(self, prompts: Sequence[np.ndarray],
              read: Callable[[np.ndarray], Sequence[torch.Tensor]]) -> None:
        """Keep what is worth it of what these prompts, each int32 (tokens,), begin with, the best first.

        read(tokens) -> its ``entries``, by a forward; at most ``HELD`` a call, as one more would drive out
        what this call has read
        """
        prompts = sorted(prompts, key=lambda prompt: prompt.astype(">i4").tobytes())
        for _ in range(MAX_PREFIXES):
            tokens = self._worth(prompts)
            if tokens is None:
                return
            prefix = Prefix(tokens, read(tokens))
            if all(bool(entries.isfinite().all()) for entries in prefix.entries):
                self._held = [prefix, *self._held][:MAX_PREFIXES]
            else:
                self._non_finite = [tokens, *self._non_finite][:MAX_PREFIXES]

    def group(self, prompts: Sequence[np.ndarray]) -> list[tuple[Prefix | None, np.ndarray]]:
        """Rows of these prompts that begin alike: what they begin with (None: nothing), and their indices.

        Each prompt is longer than its prefix: the last token's logits are needed. Several groups are several
        forwards, which small savings do not pay for.
        """
        numbers, shared = (np.array(x, np.int64) for x in zip(*map(self._longest, prompts), strict=True))
        for number in np.unique(numbers) if (numbers != numbers[0]).any() else ():
            rows = numbers == number
            if rows.sum() * shared[rows].min() < _MIN_SAVED_TOKENS:
                numbers[rows] = -1
        groups = [(number, np.flatnonzero(numbers == number)) for number in dict.fromkeys(numbers.tolist())]
        found = [(self._held[number].truncated(shared[rows].min()) if number >= 0 else None, rows)
                 for number, rows in groups]
        used = [number for number, _ in groups if number >= 0]
        rest = [number for number in range(len(self._held)) if number not in used]
        self._held = [self._held[number] for number in [*used, *rest]]
        return found

    def _longest(self, prompt: np.ndarray) -> tuple[int, int]:
        """Number of the prefix that a prompt shares most of, and how much; (-1, 0): too little of any."""
        shared = [(common_prefix_length(prompt[:-1], prefix.tokens), -len(prefix)) for prefix in self._held]
        best = max(range(len(shared)), key=shared.__getitem__, default=-1)  # of equals the one shared by more
        return (best, shared[best][0]) if shared and shared[best][0] >= MIN_TOKENS else (-1, 0)

    def _worth(self, prompts: Sequence[np.ndarray]) -> np.ndarray | None:
        """Tokens of the prefix that saves most of what sorted prompts would read, if that is enough."""
        alike = np.array([min(common_prefix_length(a, b), len(a) - 1, len(b) - 1, MAX_TOKENS)
                          for a, b in zip(prompts, prompts[1:], strict=False)], np.int64)
        known = np.array([self._longest(prompt)[1] for prompt in prompts])
        least = max(_MIN_SAVED_TOKENS, _MIN_SAVED_SHARE * sum(len(prompt) for prompt in prompts))
        best, found = least, None
        for place, length in enumerate(alike):
            if length < MIN_TOKENS:
                continue
            shorter = np.flatnonzero(alike < length)  # beside it all prompts begin with these tokens
            first = shorter[shorter < place].max(initial=-1) + 1
            last = shorter[shorter > place].min(initial=len(alike))
            saved = np.maximum(length - known[first : last + 1], 0).sum() - length
            tokens = prompts[place][:length]
            if saved > best and not any(np.array_equal(tokens[: len(bad)], bad) for bad in self._non_finite):
                best, found = saved, tokens.copy()
        return found
