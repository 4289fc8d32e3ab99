"""A batch of draft trees as plain arrays: what drafters return to the decode engine."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

ROOT = -1
BY_DEPTH = 0.7  # score of a node relative to its parent, where a drafter gives none

# Source of a draft token: the nearest one that proposed it. `dare-job show` names them.
SOURCE_NONE, SOURCE_PROMPT, SOURCE_LIVE, SOURCE_OWN, SOURCE_GROUP, SOURCE_GLOBAL, SOURCE_MODEL = range(7)


class DraftBatch(NamedTuple):
    """Token trees of R rows, padded to N nodes (N may be 0).

    The root of a tree is the row's last emitted token and is not a node. Parents precede their children, and
    siblings have distinct tokens.

    Attributes
    ----------
    tokens : int32 (R, N)
        Token of each node.
    parents : int32 (R, N)
        Column of the parent, or ``ROOT`` (-1).
    sizes : int32 (R,)
        Number of nodes in use; columns from ``sizes[r]`` on are padding.
    scores : float32 (R, N)
        Estimated probability that the path up to the node is accepted.
    sources : uint8 (R, N)
        SOURCE_* of the nearest source that proposed the node.
    """

    tokens: np.ndarray
    parents: np.ndarray
    sizes: np.ndarray
    scores: np.ndarray
    sources: np.ndarray

    @classmethod
    def of(cls, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]] | None = None,
           scores: Sequence[Sequence[float]] | None = None, min_score: float = 0.0) -> "DraftBatch":
        """Trees from lists: tokens, parents (columns, or ``ROOT``) and scores of the nodes of each row.

        Without parents, each row has a chain. Nodes are sorted by descending score; one with a higher score
        than its parent gets the parent's, and those below ``min_score`` are left out. Without scores, nodes
        have ``scores_by_depth``.

        Raises
        ------
        ValueError
            With scores or ``min_score``: a parent is neither ``ROOT`` nor an earlier node, or the lists
            differ in length.
        """
        if parents is None:
            parents = [range(-1, len(row) - 1) for row in tokens]
        given = scores is not None
        scores = scores if given else [scores_by_depth(row) for row in parents]
        if given or min_score > 0:
            rows = [_by_score(*row, min_score) for row in zip(tokens, parents, scores, strict=True)]
            tokens, parents, scores = ([row[part] for row in rows] for part in range(3))
        sizes = np.array([len(row) for row in tokens], np.int32)
        shape = len(tokens), int(sizes.max(initial=0))
        batch = cls(np.zeros(shape, np.int32), np.full(shape, ROOT, np.int32), sizes,
                    np.ones(shape, np.float32), np.full(shape, SOURCE_MODEL, np.uint8))
        for r, size in enumerate(sizes):
            batch.tokens[r, :size] = tokens[r]
            batch.parents[r, :size] = parents[r]
            batch.scores[r, :size] = scores[r]
        return batch

    @property
    def rows(self) -> int:
        """R, the number of trees."""
        return self.tokens.shape[0]

    @property
    def nodes(self) -> int:
        """N, the number of columns."""
        return self.tokens.shape[1]


def scores_by_depth(parents: Sequence[int]) -> list[float]:
    """Scores of a row's nodes: BY_DEPTH to the power of their depth, at most that of any node before them.

    An adaptive draft budget corrects them by how often nodes of similar scores are accepted. Nodes of equal
    scores would all count as the mean node.
    """
    depths: list[int] = []
    for node, parent in enumerate(parents):
        depths.append(1 + (depths[parent] if ROOT < parent < node else 0))
    return np.minimum.accumulate(BY_DEPTH ** np.array(depths, float)).tolist()


def _by_score(tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float], min_score: float
              ) -> tuple[list[int], list[int], list[float]]:
    """A row's tokens, parents and scores by descending score, without nodes below ``min_score``."""
    limited: list[float] = []
    floats = np.asarray(scores, np.float32).tolist()
    for node, (_, parent, score) in enumerate(zip(tokens, parents, floats, strict=True)):
        if not ROOT <= parent < node:
            raise ValueError(f"node {node} has parent {parent}; it must be {ROOT} (the root) or an earlier "
                             "node")
        limited.append(score if parent == ROOT else min(score, limited[parent]))
    order = sorted((node for node, score in enumerate(limited) if score >= min_score),
                   key=lambda node: -limited[node])
    columns = {ROOT: ROOT, **{node: column for column, node in enumerate(order)}}
    return ([int(tokens[node]) for node in order], [columns[parents[node]] for node in order],
            [limited[node] for node in order])


@lru_cache(maxsize=64)
def empty_drafts(rows: int) -> DraftBatch:
    """Trees without nodes, for autoregressive decoding. The arrays are cached: do not write to them."""
    shape = (rows, 0)
    return DraftBatch(np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(rows, np.int32),
                      np.zeros(shape, np.float32), np.zeros(shape, np.uint8))
