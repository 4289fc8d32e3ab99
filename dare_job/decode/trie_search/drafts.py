"""N-draft beams: a drafter goes down the trie from the target's beams, N nodes a level (AtSpeed, section 2).

What gives the children's probabilities, a ``Scorer``, may be a small model (``ModelScorer``) or anything that
weighs items (``leaves.py``).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.beams import Beams, Candidates, Drafted, Progress, best, candidates
from dare_job.decode.trie_search.node_scores import RENORMALISED, Children, NodeScores
from dare_job.decode.trie_search.trie import NONE, Vocabulary
from dare_job.errors import ConfigError

if TYPE_CHECKING:
    from dare_job.decode.trie_search.beams import Query


class Scorer(Protocol):
    reads: list[np.ndarray]

    def begin(self, queries: Sequence["Query"]) -> None: ...

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        """As ``Reader.children``, of any nodes int64 (S, N) of rows (S,)."""


class TrieDrafter:
    """Levels below the target's beams, by a beam search that starts from them with the target's scores.

    A level with at most ``whole`` nodes below a row's beams is drafted whole, so that it is accepted for
    sure; of another one come the ``width`` (N) best. Width 0: the draft ends there.
    """

    def __init__(self, scorer: Scorer, length: int, width: int = 40, depth: int | None = None,
                 whole: int = 0):
        """length: codes of an id; depth: levels of a draft (gamma), None: all. Raises ConfigError for a depth
        below 1, and where nothing would be drafted.
        """
        self.scorer, self.length, self.width, self.whole = scorer, length, width, whole
        self.depth = max(1, length - 1) if depth is None else depth
        if self.depth < 1 or min(width, whole) < 0 or width + whole < 1:
            raise ConfigError(f"a draft of width {width}, whole levels up to {whole} nodes and depth "
                              f"{depth}: depth must be at least 1, and one of the others")

    def begin(self, queries: Sequence["Query"]) -> None:
        self.scorer.begin(queries)

    @property
    def reads(self) -> list[np.ndarray]:
        return self.scorer.reads

    def draft(self, progress: Progress, depth: int | None = None) -> list[Drafted]:
        rows, levels, *beams = progress
        beams, found = Beams(*beams), []
        for step in range(self.depth if depth is None else min(depth, self.depth)):
            nodes = np.where(levels[:, None] + step < self.length - 1, beams.nodes.cpu().numpy(), NONE)
            if (nodes == NONE).all():
                break
            below = candidates(beams.scores, *self.scorer.children(rows, nodes))
            beams, drawn = self.chosen(rows, below)
            found.append(Drafted(rows, beams.nodes.cpu().numpy(), below, drawn))
        return found

    def chosen(self, rows: np.ndarray, found: Candidates) -> tuple[Beams, torch.Tensor | None]:
        """The nodes of a level of rows (S,), and ``Drafted.drawn``."""
        sizes = (found.nodes >= 0).sum(-1)
        limits = torch.where(sizes <= self.whole, sizes, self.width)
        return best(found, max(1, int(limits.max())), limits), None


class ModelScorer:
    """A small recommender that reads nodes as they are asked for. Its tokens need not be the target's."""

    def __init__(self, target: Target, vocabulary: Vocabulary):
        self.reader = NodeScores(target, vocabulary, RENORMALISED)

    @property
    def reads(self) -> list[np.ndarray]:
        return self.reader.reads

    def begin(self, queries: Sequence["Query"]) -> None:
        self.reader.begin([query.draft_prompt or query.prompt for query in queries])

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        if not self.reader.knows(rows, nodes).all():
            self.reader.read(rows, nodes)
        return self.reader.children(rows, nodes)
