"""Draft trees as the target model and the verifiers need them: one query a node, and who sees whom."""

from dataclasses import dataclass
from functools import lru_cache

import numba
import numpy as np
import torch

from pools.tree import DraftBatch


@dataclass(frozen=True)
class Tree:
    """T queries of one forward: each row's root and its draft nodes behind it, row after row.

    tokens     int64 (T,)
    parents    int64 (T,)     query of the parent, which stands before it; a root is its own
    depths     int64 (T,)     root 0
    rows       int64 (T,)     row of each query
    ancestors  bool (T, W)    [t, j]: query j of t's row, its root being 0, is t or an ancestor of t
    depth      depth of the deepest node
    scores     float32 (T,), on the host: estimated probability that the path to a node is accepted; root 1
    host       tokens, parents, depths and starts as numpy arrays; row r has the queries from starts[r] up to
               starts[r + 1], starts being int64 (R + 1,)
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    rows: torch.Tensor
    ancestors: torch.Tensor
    depth: int
    scores: np.ndarray
    host: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

    @property
    def starts(self) -> np.ndarray:
        return self.host[3]

    @property
    def width(self) -> int:
        """W: queries of the row that has the most."""
        return self.ancestors.shape[1]

    @property
    def even(self) -> bool:
        """Whether all rows have as many queries."""
        return len(self.tokens) == (len(self.starts) - 1) * self.width

    def to(self, device: torch.device) -> "Tree":
        """The same tree with its tensors on another device."""
        if device.type == "cpu":
            return self
        tensors = (self.tokens, self.parents, self.depths, self.rows, self.ancestors)
        return Tree(*(x.to(device, non_blocking=True) for x in tensors), self.depth, self.scores, self.host)


def build(roots: np.ndarray, drafts: DraftBatch, deepest: np.ndarray) -> Tree:
    """Trees of the root tokens (R,) and their drafts, on the CPU.

    Nodes deeper than ``deepest`` (R,) are left out.
    """
    rows = len(roots)
    if not drafts.sizes.any():
        tokens = roots.astype(np.int64)
        tensors, scores, host = _root_only(rows)
        return Tree(torch.from_numpy(tokens), *tensors, 0, scores, (tokens, *host))
    most = rows + int(drafts.sizes.sum())
    tokens, parents, depths, numbers = np.empty((4, most), np.int64)
    starts = np.empty(rows + 1, np.int64)
    scores = np.empty(most, np.float32)
    given = drafts.scores if drafts.scores is not None else np.ones(drafts.tokens.shape, np.float32)
    width, depth = _lay_out(roots, deepest, drafts.tokens, drafts.parents, drafts.sizes, given,
                            tokens, parents, depths, numbers, scores, starts)
    total = int(starts[-1])
    ancestors = np.zeros((total, width), np.bool_)
    _mark(parents, starts, ancestors)
    host = (tokens[:total], parents[:total], depths[:total], starts)
    tensors = map(torch.from_numpy, (*host[:3], numbers[:total], ancestors))
    return Tree(*tensors, depth, scores[:total], host)


@lru_cache(maxsize=8)
def _root_only(rows: int) -> tuple[tuple[torch.Tensor, ...], np.ndarray, tuple[np.ndarray, ...]]:
    """All of trees without drafts but their tokens, as tensors and as arrays: nobody writes to them."""
    numbers, zeros, ones = np.arange(rows), np.zeros(rows, np.int64), np.ones((rows, 1), np.bool_)
    tensors = map(torch.from_numpy, (numbers, zeros, numbers, ones))
    return tuple(tensors), np.ones(rows, np.float32), (numbers, zeros, np.arange(rows + 1))


@numba.njit(cache=True)
def _lay_out(roots, deepest, draft_tokens, draft_parents, sizes, draft_scores, tokens, parents, depths,
             numbers, scores, starts):
    """Queries without those that are too deep; return the widest row's and the greatest depth."""
    at, width, depth = 0, 1, 0
    places = np.empty(draft_tokens.shape[1] + 1, np.int64)  # of the root and of each node; -1: left out
    for r in range(len(roots)):
        starts[r] = at
        tokens[at], parents[at], depths[at], numbers[at], scores[at] = roots[r], at, 0, r, 1
        places[0] = at
        at += 1
        for i in range(sizes[r]):
            parent = places[draft_parents[r, i] + 1]
            if parent < 0 or depths[parent] >= deepest[r]:
                places[i + 1] = -1
                continue
            tokens[at], parents[at], numbers[at] = draft_tokens[r, i], parent, r
            scores[at] = draft_scores[r, i]
            depths[at] = depths[parent] + 1
            depth = max(depth, depths[at])
            places[i + 1] = at
            at += 1
        width = max(width, at - starts[r])
    starts[len(roots)] = at
    return width, depth


@numba.njit(cache=True)
def _mark(parents, starts, ancestors):
    for r in range(len(starts) - 1):
        start = starts[r]
        for t in range(start, starts[r + 1]):
            own = t - start
            if own > 0:
                up = parents[t]
                for j in range(own):
                    ancestors[t, j] = ancestors[up, j]
            ancestors[t, own] = True
