"""One step of beam search over a trie: the candidates after K beams, and the best of them. Pure functions.

Shape letters: S rows, K beams, C children of a node, A = K * C candidates. Beams are in ascending order of
their nodes, and so are candidates. Ties are broken in that order: of two candidates with equal scores, the
one whose codes are lexicographically smaller is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dare_job.decode.sampling.rules import normalised
from dare_job.decode.trie_search.trie import NONE, Trie

_LAST = torch.iinfo(torch.int64).max  # sorts after every node


class Candidates(NamedTuple):
    """Candidates of a step.

    Attributes
    ----------
    nodes : int64 (S, A)
        Ascending where present, else NONE.
    scores : float32 (S, A)
        Log-probability of the whole path, -inf where there is none.
    """

    nodes: torch.Tensor
    scores: torch.Tensor


class TrieBeams(NamedTuple):
    """Beams of S rows.

    Attributes
    ----------
    nodes : int64 (S, K)
        Ascending; NONE at the end where there are fewer.
    scores : float32 (S, K)
        Log-probabilities; -inf where there is no beam.
    """

    nodes: torch.Tensor
    scores: torch.Tensor

    def ranked(self) -> "TrieBeams":
        """Return the beams sorted by descending score."""
        scores, order = self.scores.sort(dim=-1, descending=True, stable=True)
        return TrieBeams(self.nodes.gather(-1, order), scores)


def candidates(scores: torch.Tensor, children: torch.Tensor, present: torch.Tensor, logs: torch.Tensor,
               banned: torch.Tensor | None = None) -> Candidates:
    """Combine beams with their children.

    Parameters
    ----------
    scores : (S, K)
        Of the beams.
    children, present, logs : (S, K, C)
        As returned by ``NodeScores.children``.
    banned : bool (S, K, C)
        Children that must not be recommended.
    """
    if banned is not None:
        present = present & ~banned
    scores_of_paths = (scores[..., None] + logs).masked_fill(~present, -torch.inf)
    return Candidates(torch.where(present, children, NONE).flatten(1), scores_of_paths.flatten(1))


def best(candidates: Candidates, k: int, limits: torch.Tensor | None = None) -> TrieBeams:
    """Return the k candidates with the highest scores; of ties the first. limits int64 (S,) caps k per row.
    """
    scores, order = candidates.scores.sort(dim=-1, descending=True, stable=True)
    excluded = scores[:, :k] == -torch.inf
    if limits is not None:
        excluded |= torch.arange(excluded.shape[1], device=limits.device) >= limits[:, None]
    return select(candidates, order[:, :k].masked_fill(excluded, NONE), k)


def select(candidates: Candidates, places: torch.Tensor, k: int) -> TrieBeams:
    """Return the candidates at places int64 (S, <= k), with NONE for no candidate, as k beams."""
    if places.shape[1] < k:
        places = torch.nn.functional.pad(places, (0, k - places.shape[1]), value=NONE)
    end = candidates.nodes.shape[1]
    order = torch.where(places < 0, end, places).sort(dim=-1).values
    empty = order == end
    order = order.clamp_max(end - 1)
    return TrieBeams(candidates.nodes.gather(-1, order).masked_fill(empty, NONE),
                 candidates.scores.gather(-1, order).masked_fill(empty, -torch.inf))


def find_places(candidates: Candidates, nodes: torch.Tensor) -> torch.Tensor:
    """Return the places int64 (S, N) of nodes (S, N) among the candidates (S, A); NONE where they are absent.
    """
    nodes_or_last = torch.where(candidates.nodes < 0, _LAST, candidates.nodes)
    nodes_or_last, order = nodes_or_last.sort(dim=-1)
    index = torch.searchsorted(nodes_or_last, nodes.contiguous()).clamp_max(nodes_or_last.shape[1] - 1)
    present = (nodes_or_last.gather(1, index) == nodes) & (nodes >= 0)
    return torch.where(present, order.gather(1, index), NONE)


def candidate_distribution(candidates: Candidates, temperature: float = 1.0) -> torch.Tensor:
    """Return P(path) ** (1 / temperature), normalised over the candidates, float64 (S, A); zeros where there
    is none.
    """
    scores = candidates.scores.double() / temperature
    peak = scores.amax(-1, keepdim=True)
    weights = (scores - torch.where(peak.isfinite(), peak, 0)).exp()
    return normalised(weights)


def fill_with_best(candidates: Candidates, sampled: torch.Tensor) -> torch.Tensor:
    """Fill places int64 (S, K) that sampling left NONE with the best candidates not sampled.

    At low temperatures, probabilities underflow float64 and their candidates cannot be sampled.
    """
    k = sampled.shape[1]
    used = torch.where(sampled < 0, sampled.amax(-1, keepdim=True), sampled).clamp_min(0)
    unused = candidates.scores.scatter(1, used, -torch.inf)
    scores, order = unused.sort(dim=-1, descending=True, stable=True)
    others = order[:, :k].masked_fill(scores[:, :k] == -torch.inf, NONE)
    combined = torch.cat((sampled, others), dim=1)
    return combined.gather(1, (combined < 0).to(torch.int8).argsort(dim=-1, stable=True)[:, :k])


class Banned:
    """Nodes that must not be recommended, per row; stored as sorted keys row * n + node, n nodes of the trie.

    ``keys`` is int64 (m,), of all rows together.
    """

    def __init__(self, keys: np.ndarray, nodes: int, device):
        self.keys, self.nodes = torch.from_numpy(keys).to(device), nodes

    @classmethod
    def from_leaves(cls, trie: Trie, leaves: Sequence[Sequence[int]], device) -> "Banned | None":
        """Ban leaves, counted from 0, per row, and the prefixes that lead to banned leaves only; None for no
        bans.
        """
        sizes = np.array([len(set(row)) for row in leaves], np.int64)
        if not sizes.any():
            return None
        rows = np.repeat(np.arange(len(leaves)), sizes)
        keys = []
        node = np.concatenate([np.unique(np.asarray(row, np.int64)) for row in leaves]) + trie.first_leaf
        for _ in range(trie.length):
            places, counts = np.unique(rows * len(trie) + node, return_counts=True)
            ends = trie.leaf_ends[places % len(trie)]
            keys.append(places[counts == ends[:, 1] - ends[:, 0]])
            node = trie.parents[node]
        return cls(np.sort(np.concatenate(keys)), len(trie), device)

    def contains(self, rows: np.ndarray, nodes: torch.Tensor) -> torch.Tensor:
        """Return which of the nodes (S, ...) are banned for rows (S,), bool (S, ...)."""
        row = torch.from_numpy(rows).to(nodes.device).view(-1, *[1] * (nodes.ndim - 1))
        keys = row * self.nodes + nodes
        index = torch.searchsorted(self.keys, keys).clamp_max(len(self.keys) - 1)
        return self.keys[index] == keys


class Drafted(NamedTuple):
    """One drafted level of rows (S,).

    Attributes
    ----------
    rows : int64 (S,)
        Row indices.
    nodes : int64 (S, N)
        Ascending; NONE where there are fewer.
    candidates
        What they were chosen from, with log-probabilities under the drafter, not normalised.
    sampled : int64 (S, N)
        Places in ``candidates`` in sampling order; None if they are the best.
    """

    rows: np.ndarray
    nodes: np.ndarray
    candidates: Candidates
    sampled: torch.Tensor | None


@dataclass(frozen=True)
class Query:
    """One user.

    Attributes
    ----------
    prompt
        Token ids, at least one.
    history
        Leaves of the trie, oldest first, for drafters without a model.
    banned
        Leaves that must not be recommended.
    draft_prompt
        Token ids for a draft model with another vocabulary; empty to use ``prompt``.
    name
        Text or integer that identifies the user's random stream.
    """

    prompt: Sequence[int]
    history: Sequence[int] = ()
    banned: Sequence[int] = ()
    draft_prompt: Sequence[int] = ()
    name: str | int = 0
