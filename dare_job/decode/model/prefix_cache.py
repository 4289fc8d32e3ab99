"""Prefix cache: keys and values of a few common prompt prefixes, computed once and kept with the model.

Prompts of one template share its beginning, often after that of a chat template. When the waiting prompts are
sorted, the common prefixes of neighbors are all candidates. A prefix is cached if this saves enough prompt
tokens: reading it takes a separate forward pass, which has a fixed cost, and rows with different prefixes
cannot share a forward pass. The limits come from measurements on a CPU. The least recently used prefix is
dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numba
import numpy as np
import torch


@numba.njit(cache=True)
def common_prefix_length(text, other):
    """Return the number of leading tokens that two texts share."""
    length = min(len(text), len(other))
    for n in range(length):
        if text[n] != other[n]:
            return n
    return length


MAX_PREFIXES = 4
MAX_TOKENS = 1024  # per prefix; all prefixes take as much memory as a few rows of a batch
MIN_TOKENS = 12  # per prefix; fewer do not pay for the mask and the copy

_MIN_SAVED_TOKENS = 128  # a forward of its own costs as much as 50 tokens on a CPU
_MIN_SAVED_SHARE = 1 / 16  # of the tokens of all waiting prompts


@dataclass(frozen=True)
class Prefix:
    """A cached prefix.

    Attributes
    ----------
    tokens : int32 (N,)
    entries : sequence of float (parts, heads, N, dim)
        Keys and values, as from ``TreeCache.entries``.
    """

    tokens: np.ndarray
    entries: Sequence[torch.Tensor]

    def __len__(self) -> int:
        return len(self.tokens)

    def truncated(self, length: int) -> "Prefix":
        """Return the first ``length`` tokens, whose entries do not depend on later tokens."""
        return Prefix(self.tokens[:length], [entries[:, :, :length] for entries in self.entries])


class PrefixCache:
    """Prefixes of one model, in order of last use."""

    def __init__(self):
        self._prefixes: list[Prefix] = []
        self._non_finite: list[np.ndarray] = []  # tokens of prefixes that are not cached

    def update(self, prompts: Sequence[np.ndarray],
               read: Callable[[np.ndarray], Sequence[torch.Tensor] | None]) -> None:
        """Cache the prefixes of waiting prompts that save the most tokens, at most ``MAX_PREFIXES`` per call.

        Parameters
        ----------
        prompts : sequence of int32 (tokens,)
        read : callable
            Computes the ``Prefix.entries`` of tokens by a forward pass. None: it lacks memory now.
        """
        prompts = sorted(prompts, key=lambda prompt: prompt.astype(">i4").tobytes())
        for _ in range(MAX_PREFIXES):
            tokens = self._best_prefix(prompts)
            if tokens is None or (entries := read(tokens)) is None:
                return
            prefix = Prefix(tokens, entries)
            if all(bool(entries.isfinite().all()) for entries in prefix.entries):
                self._prefixes = [prefix, *self._prefixes][:MAX_PREFIXES]
            else:
                self._non_finite = [tokens, *self._non_finite][:MAX_PREFIXES]

    def group(self, prompts: Sequence[np.ndarray]) -> list[tuple[Prefix | None, np.ndarray]]:
        """Group prompts by cached prefix.

        A prompt is longer than its prefix, because the logits of its last token are needed. Each group takes
        a forward pass, so groups with small savings are read without a prefix.

        Returns
        -------
        list of (Prefix or None, int64 (n,))
            Prefix and indices of the prompts of each group.
        """
        indices, shared = (np.array(x, np.int64) for x in zip(*map(self._longest, prompts), strict=True))
        for index in np.unique(indices) if (indices != indices[0]).any() else ():
            rows = indices == index
            if rows.sum() * shared[rows].min() < _MIN_SAVED_TOKENS:
                indices[rows] = -1
        members = [(index, np.flatnonzero(indices == index)) for index in dict.fromkeys(indices.tolist())]
        groups = [(self._prefixes[index].truncated(shared[rows].min()) if index >= 0 else None, rows)
                  for index, rows in members]
        used = [index for index, _ in members if index >= 0]
        unused = [index for index in range(len(self._prefixes)) if index not in used]
        self._prefixes = [self._prefixes[index] for index in [*used, *unused]]
        return groups

    def _longest(self, prompt: np.ndarray) -> tuple[int, int]:
        """Return the index of the prefix that a prompt shares most of, and the tokens shared; or (-1, 0)."""
        shared = [(common_prefix_length(prompt[:-1], prefix.tokens), -len(prefix))
                  for prefix in self._prefixes]
        best = max(range(len(shared)), key=shared.__getitem__, default=-1)  # ties: the shorter prefix
        return (best, shared[best][0]) if shared and shared[best][0] >= MIN_TOKENS else (-1, 0)

    def _best_prefix(self, prompts: Sequence[np.ndarray]) -> np.ndarray | None:
        """Return the uncached prefix that saves most tokens of sorted prompts; None if it saves too few."""
        shared = np.array([min(common_prefix_length(a, b), len(a) - 1, len(b) - 1, MAX_TOKENS)
                          for a, b in zip(prompts, prompts[1:], strict=False)], np.int64)
        known = np.array([self._longest(prompt)[1] for prompt in prompts])
        min_saved = max(_MIN_SAVED_TOKENS, _MIN_SAVED_SHARE * sum(len(prompt) for prompt in prompts))
        best, prefix = min_saved, None
        for place, length in enumerate(shared):
            if length < MIN_TOKENS:
                continue
            shorter = np.flatnonzero(shared < length)  # between two of these, all prompts share these tokens
            first = shorter[shorter < place].max(initial=-1) + 1
            last = shorter[shorter > place].min(initial=len(shared))
            saved = np.maximum(length - known[first : last + 1], 0).sum() - length
            tokens = prompts[place][:length]
            if saved > best and not any(np.array_equal(tokens[: len(bad)], bad) for bad in self._non_finite):
                best, prefix = saved, tokens.copy()
        return prefix


class NoPrefixes(PrefixCache):
    """Caches nothing, for models whose rows do not start from cached entries."""

    def update(self, prompts: Sequence[np.ndarray],
               read: Callable[[np.ndarray], Sequence[torch.Tensor] | None]) -> None:
        """Do nothing."""

    def group(self, prompts: Sequence[np.ndarray]) -> list[tuple[Prefix | None, np.ndarray]]:
        """Return all prompts as one group without a prefix."""
        return [(None, np.arange(len(prompts)))]
