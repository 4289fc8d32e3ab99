"""Draft trees as the target model and the verifiers need them: one query a node, and who sees whom.

Uneven rows: the model's layers read their queries one behind the other, attention side by side.

What a model does with one token at a time needs no padding. Attention does: there each row has its own keys,
and rows with fewer queries than the widest one repeat their root.
"""

from functools import cached_property, lru_cache

import numba
import numpy as np
import torch

from pools.tree import DraftBatch


class Tree:
    """T queries of one forward: each row's root and its draft nodes behind it, row after row. Read only.

    host    int64 arrays: tokens, parents, depths (T,), starts (R + 1,). A query's parent is a query that
            stands before it, a root's is the root itself; a root's depth is 0; row r has the queries from
            starts[r] up to starts[r + 1]
    width   W: queries of the row that has the most
    depth   of the deepest node
    scores  float32 (T,): estimated probability that the path to a node is accepted; root 1
    side    int64 arrays, for rows that stand side by side in R times W places: the query in each place
            (R * W,), a root where a row has fewer, and the place of each query (T,)
    even    whether all rows have as many queries
    """

    def __init__(self, host: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], width: int, depth: int,
                 scores: np.ndarray, side: tuple[np.ndarray, np.ndarray]):
        self.host, self.width, self.depth, self.scores, self.padding = host, width, depth, scores, side
        self.starts = host[3]
        self.uniform = len(side[0]) == len(side[1])
        self._original: Tree | None = None  # of a tree that was moved to a device: what it was made of

    def __len__(self) -> int:
        return len(self.host[0])

    @property
    def on_cpu(self) -> "Tree":
        return self if self._original is None else self._original

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
        _mark_ancestors(self.host[1], self.starts, ancestors)
        return torch.from_numpy(ancestors)

    def to(self, device: torch.device) -> "Tree":
        """The same tree with its tensors on another device."""
        if device.type == "cpu":
            return self
        moved = Tree(self.host, self.width, self.depth, self.scores, self.padding)
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
        host, side, scores = _root_only(rows)
        return Tree((roots.astype(np.int64), *host), 1, 0, scores, side)
    most = rows * (1 + drafts.nodes)
    host = np.empty((5, most), np.int64)
    starts, scores = np.empty(rows + 1, np.int64), np.empty(most, np.float32)
    given = drafts.scores if drafts.scores is not None else np.ones(drafts.tokens.shape, np.float32)
    width, depth = _lay_out(roots, deepest, drafts.tokens, drafts.parents, drafts.sizes, given, host, scores,
                            starts)
    total = starts[-1]
    tokens, parents, depths, places = host[:4, :total]
    return Tree((tokens, parents, depths, starts), width, depth, scores[:total],
                (host[4, : rows * width], places))


@lru_cache(maxsize=8)
def _root_only(rows: int) -> tuple:
    """Of trees without drafts parents, depths and starts, ``side`` and scores: nobody writes to them."""
    each = np.arange(rows)
    return (each, np.zeros(rows, np.int64), np.arange(rows + 1)), (each, each), np.ones(rows, np.float32)


@numba.njit(cache=True)
def _lay_out(roots, deepest, draft_tokens, draft_parents, sizes, draft_scores, host, scores, starts):
    """Queries without those that are too deep; return the widest row's and the greatest depth."""
    tokens, parents, depths, side_places, side_queries = host
    at, width, depth = 0, 1, 0
    places = np.empty(draft_tokens.shape[1] + 1, np.int64)  # of the root and of each node; -1: left out
    for r in range(len(roots)):
        starts[r] = at
        tokens[at], parents[at], depths[at], scores[at] = roots[r], at, 0, 1
        places[0] = at
        at += 1
        for i in range(sizes[r]):
            parent = places[draft_parents[r, i] + 1]
            if parent < 0 or depths[parent] >= deepest[r]:
                places[i + 1] = -1
                continue
            tokens[at], parents[at] = draft_tokens[r, i], parent
            scores[at] = draft_scores[r, i]
            depths[at] = depths[parent] + 1
            depth = max(depth, depths[at])
            places[i + 1] = at
            at += 1
        width = max(width, at - starts[r])
    starts[len(roots)] = at
    _fill_padding(starts, width, side_places, side_queries)
    return width, depth


@numba.njit
def _fill_padding(starts, width, places, queries):
    for r in range(len(starts) - 1):
        start, own = starts[r], starts[r + 1] - starts[r]
        for i in range(width):
            queries[r * width + i] = start + i if i < own else start
            if i < own:
                places[start + i] = r * width + i


@numba.njit(cache=True)
def _mark_ancestors(parents, starts, ancestors):
    for r in range(len(starts) - 1):
        start = starts[r]
        for t in range(start, starts[r + 1]):
            own = t - start
            if own > 0:
                up = parents[t]
                for j in range(own):
                    ancestors[t, j] = ancestors[up, j]
            ancestors[t, own] = True


class PaddedLayout:
    """T queries of R rows as R times W places. Read only.

    queries  int64 (R * W,)  the query in each place
    places   int64 (T,)      the place of each query
    even     query t stands in place t
    fold     query heads that share keys become queries of one head, so that no kernel has to know of groups
    """

    def __init__(self, rows: int, width: int, queries: torch.Tensor, places: torch.Tensor,
                 even: bool = False, fold: bool = False):
        self.rows, self.width, self.queries, self.places = rows, width, queries, places
        self.even, self.fold = even, fold
        self._repeated: dict = {}

    @classmethod
    def of(cls, tree: Tree) -> "PaddedLayout":
        queries, places = map(torch.from_numpy, tree.padding)
        if (device := tree.tokens.device).type != "cpu":
            queries, places = queries.to(device), places.to(device)
        return cls(len(tree.starts) - 1, tree.width, queries, places)

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """(1, H, T, D) -> (R, H, W, D)."""
        _, heads, _, dim = states.shape
        spread = states[0] if self.even else states[0].index_select(1, self.queries)
        return spread.reshape(heads, self.rows, self.width, dim).transpose(0, 1)

    def unpad(self, states: torch.Tensor) -> torch.Tensor:
        """(R, W, ...) -> (T, ...)."""
        flat = states.flatten(0, 1)
        return flat if self.even else flat.index_select(0, self.places)

    def repeated(self, mask: torch.Tensor, times: int) -> torch.Tensor:
        """(R, 1, W, L) -> (R, 1, times * W, L), made once for all layers that bring the same mask."""
        known = self._repeated.get(id(mask))
        if known is None or known[0] is not mask:
            rows, _, queries, columns = mask.shape
            wide = mask[:, :, None].expand(-1, -1, times, -1, -1)
            known = self._repeated[id(mask)] = mask, wide.reshape(rows, 1, times * queries, columns)
        return known[1]
