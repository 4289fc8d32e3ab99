"""N-draft beams: a drafter goes down the trie from the target's beams, N nodes a level (AtSpeed, section 2).

What gives the children's probabilities, a ``Scorer``, may be a small model (``ModelScorer``) or anything that
weighs items (``leaves.py``).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

from dare_job.decode.beam.top_k.beams import Beams, Candidates, best, candidates
from dare_job.decode.beam.top_k.reader import RENORMALISED, Children, Reader
from dare_job.decode.beam.top_k.trie import NONE, Vocabulary
from dare_job.decode.target import Target
from dare_job.errors import ConfigError

if TYPE_CHECKING:
    from dare_job.decode.beam.top_k.search import Query


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


class Scorer(Protocol):
    reads: list[np.ndarray]

    def begin(self, queries: Sequence["Query"]) -> None: ...

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        """As ``Reader.children``, of any nodes int64 (S, N) of rows (S,)."""


class BeamDrafter:
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
        self.reader = Reader(target, vocabulary, RENORMALISED)

    @property
    def reads(self) -> list[np.ndarray]:
        return self.reader.reads

    def begin(self, queries: Sequence["Query"]) -> None:
        self.reader.begin([query.draft_prompt or query.prompt for query in queries])

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        if not self.reader.knows(rows, nodes).all():
            self.reader.read(rows, nodes)
        return self.reader.children(rows, nodes)
