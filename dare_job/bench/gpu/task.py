"""The texts of the replay, the target that generates them, and their acceptance without a model.

Random weights would generate noise, of which nothing can be drafted. So every forward pass is run, and a
wrapper around the target replaces its argmax tokens by those of the recorded text.
"""

from dataclasses import dataclass, replace

import numba
import numpy as np
import torch

from dare_job.bench.gpu.texts import Recorded
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.request import Request
from pools.draft import DraftSettings
from pools.index import Index


class RecordedTarget:
    """A target whose argmax tokens are the next tokens of recorded texts."""

    def __init__(self, target: Target, requests: list[Request], texts: list[np.ndarray]):
        """texts int32 (tokens,) of the requests, whose prompts differ from each other."""
        self._target = target
        self._texts, _ = _padded(texts)
        self._prompts = length_of(requests)
        self._numbers = {request.prompt_ids.tobytes(): number for number, request in enumerate(requests)}
        self._slots = np.zeros(0, np.int64)  # the text of each slot of the cache
        self.spare_cache: TreeCache | None = None

    def __getattr__(self, name: str):
        return getattr(self._target, name)

    acquire_cache = Target.acquire_cache  # so that it takes caches of its own

    def new_cache(self, slots: int) -> TreeCache:
        """A cache whose moves of rows between slots are followed."""
        cache, self._slots = self._target.new_cache(slots), np.zeros(slots, np.int64)
        move_slot = cache.move_slot

        def move(source: int, target: int, length: int) -> None:
            self._slots[target] = self._slots[source]
            move_slot(source, target, length)

        cache.move_slot = move
        return cache

    def prefill(self, cache, slots, ids, lengths, *rest) -> torch.Tensor:
        logits = self._target.prefill(cache, slots, ids, lengths, *rest)
        self._slots[slots] = [self._numbers[row[:length].astype(np.int32).tobytes()]
                              for row, length in zip(ids, lengths, strict=True)]
        return _with_argmax(logits, self._texts[self._slots[slots], 0])

    def verified(self, cache, tree: Tree, lengths: np.ndarray, *rest) -> np.ndarray:
        values = self._target.verified(cache, tree, lengths, *rest).copy()
        choices = values[0].astype(np.int64)
        self._follow(tree, lengths, choices)
        values[0] = choices
        return values

    def forward(self, cache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        """Used if keys and values are not in pages."""
        logits = self._target.forward(cache, tree, lengths)
        choices = np.full(len(logits), -1)
        self._follow(tree, lengths, choices)
        return _with_argmax(logits, choices)

    def _follow(self, tree: Tree, lengths: np.ndarray, choices: np.ndarray) -> None:
        numbers = self._slots[: len(lengths)]
        follow(*tree.host, self._texts, numbers, lengths - self._prompts[numbers], choices)


def _with_argmax(logits: torch.Tensor, choices: np.ndarray) -> torch.Tensor:
    """Logits (T, V) with these tokens (T,) as argmax tokens; -1: unchanged."""
    chosen = torch.from_numpy(np.flatnonzero(choices >= 0)).to(logits.device)
    tokens = torch.from_numpy(choices[choices >= 0].astype(np.int64)).to(logits.device)
    logits = logits.clone()
    logits[chosen, tokens] = logits.max() + 1000
    return logits


@numba.njit(cache=True)
def follow(tokens, parents, depths, starts, texts, numbers, before, choices):
    """Set the choice of each node whose path agrees with its row's text to the next token of the text.

    Nodes below a rejected node keep their choice.

    Parameters
    ----------
    tokens, parents, depths, starts
        ``Tree.host``.
    texts : (N, L)
        Token ids, padded with each text's last token.
    numbers : (R,)
        Which text each row has.
    before : (R,)
        Number of tokens of the text before the root.
    choices : (T,)
        Written in place.
    """
    agrees = np.zeros(len(tokens), np.bool_)
    for row in range(len(starts) - 1):
        text = texts[numbers[row]]
        for t in range(starts[row], starts[row + 1]):
            root = t == starts[row]
            agrees[t] = root or (agrees[parents[t]] and tokens[t] == choices[parents[t]])
            if agrees[t]:
                choices[t] = text[min(before[row] + depths[t] + 1, len(text) - 1)]


DEPTH = DraftSettings.depth  # longest draft path
_SAMPLE = 12  # texts on which acceptance is counted


@dataclass(frozen=True)
class Task:
    """Prompts and texts of the requests, and the pool of previous texts."""

    requests: list[Request]
    texts: list[np.ndarray]
    pool: Index

    @classmethod
    def of(cls, recorded: Recorded, prompt: int, vocabulary: int) -> "Task":
        """Make prompts of ``prompt`` tokens on average, and cut the texts: both have ragged lengths.

        A prompt has 0.4 to 1.6 times the average, of which the first eighth is the same for all, as the
        instructions of a prompt set are. A text has a third to all of the recorded tokens.
        """
        rng, pool, count = np.random.default_rng(1), Index.build(recorded.old), len(recorded.new)
        lengths = rng.integers(max(1, round(0.4 * prompt)), round(1.6 * prompt) + 1, count)
        shared = rng.integers(2, vocabulary, prompt // 8)
        own = [rng.integers(2, vocabulary, length - len(shared)) for length in lengths]
        prompts = [np.concatenate((shared, ids)).astype(np.int32) for ids in own]
        texts = [text[: rng.integers(-(-len(text) // 3), len(text) + 1)] for text in recorded.new]
        return cls([Request(i, ids, (pool,), max_new_tokens=len(text))
                    for i, (ids, text) in enumerate(zip(prompts, texts, strict=True))], texts, pool)

    def part(self, count: int, tokens: int) -> "Task":
        """The first ``count`` texts, cut to so many tokens."""
        texts = [text[:tokens] for text in self.texts[:count]]
        requests = [replace(request, max_new_tokens=len(text))
                    for request, text in zip(self.requests, texts, strict=False)]
        return Task(requests, texts, self.pool)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return max(map(len, self.texts))


def length_of(requests: list[Request]) -> np.ndarray:
    """Return the tokens of each prompt, int64 (R,)."""
    return np.array([len(request.prompt_ids) for request in requests])


def _padded(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return rows padded with their last token, (R, L), and their lengths (R,)."""
    lengths = np.array([len(row) for row in rows])
    longest = lengths.max()
    return np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows]), lengths


def accepted(task: Task, nodes: int) -> float:
    """Accepted tokens per step with this number of draft tokens, counted without a model on a few texts."""
    requests, rows = task.requests[:_SAMPLE], np.arange(len(task.texts[:_SAMPLE]))
    texts, length = _padded(task.texts[:_SAMPLE])
    context, _ = _padded([np.concatenate((request.prompt_ids, text))
                          for request, text in zip(requests, task.texts, strict=False)])
    prompts, drafter = length_of(requests), RetrievalDrafter(DraftSettings(depth=DEPTH))
    known = np.ones(len(texts), np.int64)
    total = steps = 0
    while len(active := rows[known < length]):
        ends = known[active] + prompts[active]
        depths = (length[active] - known[active] - 1).astype(np.int32)
        budgets = np.where(depths > 0, nodes, 0).astype(np.int32)
        drafts = drafter.draft([requests[row] for row in active], context[active], ends.astype(np.int32),
                               budgets, depths)
        tree = build(context[active, ends - 1], drafts, depths)
        choices = np.full(len(tree.tokens), -1)
        follow(*tree.host, texts, active, known[active] - 1, choices)
        depth = np.maximum.reduceat(np.where(choices >= 0, tree.host[2], 0), tree.starts[:-1])
        known[active] += depth + 1
        total, steps = total + int(depth.sum()), steps + len(active)
    return total / steps
