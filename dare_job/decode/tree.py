"""Draft trees as the target model and the verifiers need them: one query a node, and who sees whom."""

from functools import cached_property, lru_cache

import numba
import numpy as np
import torch

from pools.tree import ROOT, DraftBatch


class Tree:
    """T queries of one forward: each row's root and its draft nodes behind it, row after row. Read only.

    host    int64 arrays: tokens, parents, depths (T,), starts (R + 1,). A query's parent is a query that
            stands before it, a root's is the root itself; a root's depth is 0; row r has the queries from
            starts[r] up to starts[r + 1], those of its likeliest branch first
    width   W: queries of the row that has the most
    depth   of the deepest node
    scores  float32 (T,): estimated probability that the path to a node is accepted; root 1
    """

    def __init__(self, host: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], width: int, depth: int,
                 scores: np.ndarray):
        self.host, self.width, self.depth, self.scores = host, width, depth, scores
        self._original: Tree | None = None  # of a tree that was moved to a device: what it was made of

    def __len__(self) -> int:
        return len(self.host[0])

    @property
    def starts(self) -> np.ndarray:
        return self.host[3]

    @property
    def on_cpu(self) -> "Tree":
        return self if self._original is None else self._original

    @property
    def even(self) -> bool:
        """Whether all rows have as many queries."""
        return len(self) == (len(self.starts) - 1) * self.width

    @cached_property
    def tokens(self) -> torch.Tensor:
        """int64 (T,); this and what follows is made when it is asked for, or by ``to``."""
        return torch.from_numpy(self.host[0])

    @cached_property
    def parents(self) -> torch.Tensor:
        return torch.from_numpy(self.host[1])

    @cached_property
    def depths(self) -> torch.Tensor:
        return torch.from_numpy(self.host[2])

    @cached_property
    def rows(self) -> torch.Tensor:
        """int64 (T,): row of each query."""
        return torch.from_numpy(np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts)))

    @cached_property
    def ancestors(self) -> torch.Tensor:
        """bool (T, W): [t, j]: query j of t's row, its root being 0, is t or an ancestor of t."""
        ancestors = np.zeros((len(self), self.width), np.bool_)
        _mark(self.host[1], self.starts, ancestors)
        return torch.from_numpy(ancestors)

    def to(self, device: torch.device) -> "Tree":
        """The same tree with its tensors on another device."""
        if device.type == "cpu":
            return self
        moved = Tree(self.host, self.width, self.depth, self.scores)
        moved._original = self
        for name in ("tokens", "parents", "depths", "rows", "ancestors"):
            setattr(moved, name, getattr(self, name).to(device, non_blocking=True))
        return moved


def build(roots: np.ndarray, drafts: DraftBatch, deepest: np.ndarray) -> Tree:
    """Trees of the root tokens (R,) and their drafts, on the CPU.

    Nodes deeper than ``deepest`` (R,) are left out.
    """
    rows = len(roots)
    if not drafts.nodes:
        return Tree((roots.astype(np.int64), *_root_only(rows)), 1, 0, np.ones(rows, np.float32))
    most = rows * (1 + drafts.nodes)
    host = np.empty((3, most), np.int64)
    starts, scores = np.empty(rows + 1, np.int64), np.empty(most, np.float32)
    given = drafts.scores if drafts.scores is not None else np.ones(drafts.tokens.shape, np.float32)
    width, depth = _lay_out(roots, deepest, drafts.tokens, drafts.parents, drafts.sizes, given, host, scores,
                            starts)
    total = starts[-1]
    tokens, parents, depths = host[:, :total]
    return Tree((tokens, parents, depths, starts), width, depth, scores[:total])


@lru_cache(maxsize=8)
def _root_only(rows: int) -> tuple[np.ndarray, ...]:
    """Parents, depths and starts of trees without drafts: nobody writes to them."""
    return np.arange(rows), np.zeros(rows, np.int64), np.arange(rows + 1)


@numba.njit(cache=True)
def _lay_out(roots, deepest, draft_tokens, draft_parents, sizes, draft_scores, host, scores, starts):
    """Queries without those that are too deep; return the widest row's and the greatest depth.

    A row's root, its first child, that one's first child and so on come first: of drafts that come with
    falling scores the likeliest branch, whose accepted nodes stand in the cache where they belong.
    """
    tokens, parents, depths = host
    at, width, depth = 0, 1, 0
    places = np.empty(draft_tokens.shape[1] + 1, np.int64)  # of the root and of each node; -1: none
    for r in range(len(roots)):
        starts[r] = at
        tokens[at], parents[at], depths[at], scores[at] = roots[r], at, 0, 1
        places[0], places[1 : sizes[r] + 1] = at, -1
        at += 1
        tip = ROOT
        for rest in (False, True):
            for i in range(sizes[r]):
                up = draft_parents[r, i]
                parent = places[up + 1]
                if places[i + 1] >= 0 or (up != tip and not rest):
                    continue
                if parent < 0 or depths[parent] >= deepest[r]:
                    continue
                tokens[at], parents[at] = draft_tokens[r, i], parent
                scores[at] = draft_scores[r, i]
                depths[at] = depths[parent] + 1
                depth = max(depth, depths[at])
                places[i + 1] = at
                at += 1
                tip = i
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
