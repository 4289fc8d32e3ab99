"""Verification by recorded text: every forward is run, and what it chooses is overruled by what was written.

Random weights would write noise, of which nothing can be drafted. A wrapper around the target leaves the
engine as it is.
"""

import numba
import numpy as np
import torch

from dare_job.decode import Request, Target
from dare_job.decode.cache import TreeCache
from dare_job.decode.tree import Tree


class RecordedTarget:
    """A target whose first choices are the next tokens of recorded texts."""

    def __init__(self, target: Target, requests: list[Request], texts: list[np.ndarray]):
        """texts int32 (tokens,) of the requests, whose prompts differ from each other."""
        self._target = target
        longest = max(map(len, texts))
        self._texts = np.stack([np.pad(text, (0, longest - len(text)), mode="edge") for text in texts])
        self._prompts = np.array([len(request.prompt_ids) for request in requests])
        self._numbers = {request.prompt_ids.tobytes(): number for number, request in enumerate(requests)}
        self._written = np.zeros(0, np.int64)  # the text that is written in each slot of the cache
        self.spare: TreeCache | None = None

    def __getattr__(self, name: str):
        return getattr(self._target, name)

    take_cache = Target.take_cache  # of caches of its own

    def new_cache(self, slots: int) -> TreeCache:
        """A cache that tells where a row is moved to."""
        cache, self._written = self._target.new_cache(slots), np.zeros(slots, np.int64)
        move = cache.move

        def moved(source: int, target: int, length: int) -> None:
            self._written[target] = self._written[source]
            move(source, target, length)

        cache.move = moved
        return cache

    def prefill(self, cache, slots, ids, lengths, *rest) -> torch.Tensor:
        logits = self._target.prefill(cache, slots, ids, lengths, *rest)
        self._written[slots] = [self._numbers[row[:length].astype(np.int32).tobytes()]
                                for row, length in zip(ids, lengths, strict=True)]
        return _overruled(logits, self._texts[self._written[slots], 0])

    def first_choices(self, cache, tree: Tree, lengths: np.ndarray):
        first = self._target.first_choices(cache, tree, lengths)
        if first is not None:
            self._follow(tree, lengths, first[0])
        return first

    def forward(self, cache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        """Where forwards are not of fixed shape."""
        logits = self._target.forward(cache, tree, lengths)
        choices = np.full(len(logits), -1)
        self._follow(tree, lengths, choices)
        return _overruled(logits, choices)

    def _follow(self, tree: Tree, lengths: np.ndarray, choices: np.ndarray) -> None:
        numbers = self._written[: len(lengths)]
        follow(*tree.host, self._texts, numbers, lengths - self._prompts[numbers], choices)


def _overruled(logits: torch.Tensor, choices: np.ndarray) -> torch.Tensor:
    """Logits (T, V) with these tokens (T,) as first choices; -1: as they are."""
    chosen = torch.from_numpy(np.flatnonzero(choices >= 0)).to(logits.device)
    tokens = torch.from_numpy(choices[choices >= 0].astype(np.int64)).to(logits.device)
    logits = logits.clone()
    logits[chosen, tokens] = logits.max() + 1000
    return logits


@numba.njit(cache=True)
def follow(tokens, parents, depths, starts, texts, places, written, choices):
    """Set the choice of each node whose path agrees with its row's text to the token that comes next.

    tokens ... starts  ``Tree.host``; texts (N, L), places (R,) lines of them; written (R,): tokens of the
    text before the root, which is one of them too. Others keep their choice: a node before them failed.
    """
    agrees = np.zeros(len(tokens), np.bool_)
    for row in range(len(starts) - 1):
        text, before = texts[places[row]], written[row]
        for t in range(starts[row], starts[row + 1]):
            root = t == starts[row]
            agrees[t] = root or (agrees[parents[t]] and tokens[t] == choices[parents[t]])
            if agrees[t]:
                choices[t] = text[min(before + depths[t] + 1, len(text) - 1)]
