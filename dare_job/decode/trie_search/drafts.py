"""N-draft beams: a drafter descends the trie from the target's beams, N nodes per level (AtSpeed, section 2).

The children's probabilities come from a ``Scorer``: a small model (``ModelScorer``) or item weights
(``item_weights.py``).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.beams import Candidates, Drafted, Query, TrieBeams, best, candidates
from dare_job.decode.trie_search.node_scores import RENORMALISED, Children, NodeScores
from dare_job.decode.trie_search.trie import NONE, Vocabulary
from dare_job.errors import ConfigError


class Scorer(Protocol):
    """Gives log-probabilities of children of trie nodes.

    Attributes
    ----------
    reads
        Per forward pass since ``begin``, the tokens int64 (R,) that a draft model read of each row.
    """

    reads: list[np.ndarray]

    def begin(self, queries: Sequence[Query]) -> None:
        """Replace all rows by these queries."""

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        """Return children as ``NodeScores.children``, for any nodes int64 (S, N) of rows (S,)."""


class TrieDrafter:
    """Drafts levels below the target's beams by beam search, starting from the target's scores."""

    def __init__(self, scorer: Scorer, length: int, width: int = 40, depth: int | None = None,
                 max_full_level: int = 0):
        """Set up the drafter.

        Parameters
        ----------
        length
            Codes of an id.
        width
            N, best nodes of a level; 0 ends the draft at the first level that is not drafted in full.
        depth
            Gamma, maximum number of levels; None for all.
        max_full_level
            Levels with at most this many nodes below a row's beams are drafted in full, so they are always
            accepted.

        Raises
        ------
        ConfigError
            The depth is below 1, or nothing would be drafted.
        """
        self.scorer, self.length, self.width, self.max_full_level = scorer, length, width, max_full_level
        self.depth = max(1, length - 1) if depth is None else depth
        if self.depth < 1 or min(width, max_full_level) < 0 or width + max_full_level < 1:
            raise ConfigError(f"draft width {width}, max_full_level {max_full_level}, depth {depth}: the "
                              "depth and one of the other two must be at least 1")

    def draft(self, rows: np.ndarray, levels: np.ndarray, beams: TrieBeams,
              depth: int | None = None) -> list[Drafted]:
        """Draft at most ``depth`` levels below the beams of rows (S,), which have ``levels`` (S,) codes.

        The last level of the trie is never drafted: leaves need no read.
        """
        levels_drafted = []
        for step in range(self.depth if depth is None else min(depth, self.depth)):
            nodes = np.where(levels[:, None] + step < self.length - 1, beams.nodes.cpu().numpy(), NONE)
            if (nodes == NONE).all():
                break
            below = candidates(beams.scores, *self.scorer.children(rows, nodes))
            beams, sampled = self.select_level(rows, below)
            levels_drafted.append(Drafted(rows, beams.nodes.cpu().numpy(), below, sampled))
        return levels_drafted

    def select_level(self, rows: np.ndarray,
                     level_candidates: Candidates) -> tuple[TrieBeams, torch.Tensor | None]:
        """Choose the nodes of a level of rows (S,); also returns ``Drafted.sampled``."""
        sizes = (level_candidates.nodes >= 0).sum(-1)
        limits = torch.where(sizes <= self.max_full_level, sizes, self.width)
        return best(level_candidates, max(1, int(limits.max())), limits), None


class ModelScorer:
    """Scores nodes with a small recommender, whose tokens may differ from the target's."""

    def __init__(self, target: Target, vocabulary: Vocabulary):
        self.node_scores = NodeScores(target, vocabulary, RENORMALISED)

    @property
    def reads(self) -> list[np.ndarray]:
        return self.node_scores.reads

    def begin(self, queries: Sequence[Query]) -> None:
        self.node_scores.begin([query.draft_prompt or query.prompt for query in queries])

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        if not self.node_scores.has(rows, nodes).all():
            self.node_scores.read(rows, nodes)
        return self.node_scores.children(rows, nodes)
