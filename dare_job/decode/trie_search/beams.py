"""One step of beam search over a trie: the candidates behind K beams, and the best of them. Pure functions.

Shape letters: S rows, K beams, C children of a node, A = K * C candidates. Beams stand in ascending order of
their nodes, so candidates do too, and that is the order of equals: of two candidates with one score the one
whose codes come first lexicographically is better.

Ids that a user's list may not hold, and the prefixes that lead to nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from dare_job.decode.sampling.rules import normalised
from dare_job.decode.trie_search.trie import NONE, Trie

_LAST = torch.iinfo(torch.int64).max  # a node behind all others


class Candidates(NamedTuple):
    """nodes int64 (S, A), ascending where there is one; scores float32 (S, A): log-probabilities of the whole
    paths, -inf where there is none.
    """

    nodes: torch.Tensor
    scores: torch.Tensor


class Beams(NamedTuple):
    """nodes int64 (S, K), ascending, NONE at the end where there are fewer; scores float32 (S, K), -inf
    there.
    """

    nodes: torch.Tensor
    scores: torch.Tensor

    def ranked(self) -> "Beams":
        """The best first."""
        scores, order = self.scores.sort(dim=-1, descending=True, stable=True)
        return Beams(self.nodes.gather(-1, order), scores)


def candidates(scores: torch.Tensor, children: torch.Tensor, there: torch.Tensor, logs: torch.Tensor,
               banned: torch.Tensor | None = None) -> Candidates:
    """scores (S, K) of the beams; children, there, logs (S, K, C) as ``Reader.children`` gives them.

    banned  bool (S, K, C): children that no list may hold
    """
    if banned is not None:
        there = there & ~banned
    total = (scores[..., None] + logs).masked_fill(~there, -torch.inf)
    return Candidates(torch.where(there, children, NONE).flatten(1), total.flatten(1))


def best(found: Candidates, k: int, limits: torch.Tensor | None = None) -> Beams:
    """The k candidates of highest scores; of equals those that come first. limits int64 (S,): so many at most
    of each row.
    """
    scores, order = found.scores.sort(dim=-1, descending=True, stable=True)
    left_out = scores[:, :k] == -torch.inf
    if limits is not None:
        left_out |= torch.arange(left_out.shape[1], device=limits.device) >= limits[:, None]
    return select(found, order[:, :k].masked_fill(left_out, NONE), k)


def select(found: Candidates, places: torch.Tensor, k: int) -> Beams:
    """Candidates by their places int64 (S, <= k), NONE: nothing, as k beams."""
    if places.shape[1] < k:
        places = torch.nn.functional.pad(places, (0, k - places.shape[1]), value=NONE)
    behind = found.nodes.shape[1]
    order = torch.where(places < 0, behind, places).sort(dim=-1).values
    none = order == behind
    order = order.clamp_max(behind - 1)
    return Beams(found.nodes.gather(-1, order).masked_fill(none, NONE),
                 found.scores.gather(-1, order).masked_fill(none, -torch.inf))


def find_places(found: Candidates, nodes: torch.Tensor) -> torch.Tensor:
    """Where nodes int64 (S, N) stand among candidates (S, A): int64 (S, N), NONE where they do not."""
    known = torch.where(found.nodes < 0, _LAST, found.nodes)
    known, order = known.sort(dim=-1)
    at = torch.searchsorted(known, nodes.contiguous()).clamp_max(known.shape[1] - 1)
    there = (known.gather(1, at) == nodes) & (nodes >= 0)
    return torch.where(there, order.gather(1, at), NONE)


def candidate_distribution(found: Candidates, temperature: float = 1.0) -> torch.Tensor:
    """Probabilities float64 (S, A) of the candidates, P(path) ** (1 / temperature) over their sum; zeros
    where there is none.
    """
    scores = found.scores.double() / temperature
    peak = scores.amax(-1, keepdim=True)
    weights = (scores - torch.where(peak.isfinite(), peak, 0)).exp()
    return normalised(weights)


def fill_with_best(found: Candidates, chosen: torch.Tensor) -> torch.Tensor:
    """Places int64 (S, K) without NONE as far as there are candidates: those behind are the best of the
    others.

    Chance leaves out what is less probable than float64 can say, which at low temperatures is much.
    """
    gone = torch.where(chosen < 0, chosen.amax(-1, keepdim=True), chosen).clamp_min(0)
    left = found.scores.scatter(1, gone, -torch.inf)
    scores, order = left.sort(dim=-1, descending=True, stable=True)
    every = torch.cat((chosen, order[:, :chosen.shape[1]].masked_fill(
        scores[:, :chosen.shape[1]] == -torch.inf, NONE)), dim=1)
    first = (every < 0).to(torch.int8).argsort(dim=-1, stable=True)[:, :chosen.shape[1]]
    return every.gather(1, first)


class Banned:
    """Sorted keys row * n + node of what is banned, n nodes of the trie."""

    def __init__(self, keys: np.ndarray, nodes: int, device):
        self.keys, self.nodes = torch.from_numpy(keys).to(device), nodes

    @classmethod
    def of(cls, trie: Trie, leaves: Sequence[Sequence[int]], device) -> "Banned | None":
        """leaves: of each row, counted from 0. None: nothing is banned."""
        sizes = np.array([len(set(row)) for row in leaves], np.int64)
        if not sizes.any():
            return None
        rows = np.repeat(np.arange(len(leaves)), sizes)
        below = np.concatenate([np.unique(np.asarray(row, np.int64)) for row in leaves]) + trie.first_leaf
        keys, node = [], below
        for _ in range(trie.length):
            found, counts = np.unique(rows * len(trie) + node, return_counts=True)
            ends = trie.leaf_ends[found % len(trie)]
            keys.append(found[counts == ends[:, 1] - ends[:, 0]])
            node = trie.parents[node]
        return cls(np.sort(np.concatenate(keys)), len(trie), device)

    def among(self, rows: np.ndarray, nodes: torch.Tensor) -> torch.Tensor:
        """bool (S, ...): which of the nodes (S, ...) are banned for rows (S,)."""
        own = torch.from_numpy(rows).to(nodes.device).view(-1, *[1] * (nodes.ndim - 1))
        keys = own * self.nodes + nodes
        at = torch.searchsorted(self.keys, keys).clamp_max(len(self.keys) - 1)
        return self.keys[at] == keys


class Progress(NamedTuple):
    """Rows that need a forward.

    rows    int64 (S,): their numbers among those of ``Drafter.begin``
    levels  int64 (S,): codes that their beams have
    nodes   int64 (S, K): their beams, NONE where there are fewer
    scores  float32 (S, K): log-probabilities under the target
    """

    rows: np.ndarray
    levels: np.ndarray
    nodes: torch.Tensor
    scores: torch.Tensor


class Drafted(NamedTuple):
    """A level of a draft of rows (S,), ascending: nodes int64 (S, N), NONE where there are fewer.

    found  what they were chosen from, with log-probabilities under the drafter, not normalised
    drawn  int64 (S, N): places in ``found`` in the order in which they were drawn; None: they are the best
    """

    rows: np.ndarray
    nodes: np.ndarray
    found: Candidates
    drawn: torch.Tensor | None


class Drafter(Protocol):
    @property
    def reads(self) -> list[np.ndarray]:
        """Of each forward of a draft model since ``begin``, int64 (R,): tokens that it read of each row."""

    def begin(self, queries: Sequence["Query"]) -> None:
        """Forget all rows; these are the new ones."""

    def draft(self, progress: Progress, depth: int | None = None) -> list[Drafted]:
        """Levels below the beams, ``depth`` at most; none behind the last but one of the trie: leaves need
        not be read.
        """


@dataclass(frozen=True)
class Query:
    """One user.

    prompt        token ids, one at least
    history       leaves of the trie, the oldest first: what drafters without a model know of the user
    banned        leaves that the list may not hold
    draft_prompt  token ids for a draft model of another vocabulary; empty: it reads the same prompt
    name          of the user, whose chance it is where lists are sampled: text or a whole number
    """

    prompt: Sequence[int]
    history: Sequence[int] = ()
    banned: Sequence[int] = ()
    draft_prompt: Sequence[int] = ()
    name: str | int = 0
