"""Draft trees as inputs of the target model and of verification, and the logits of their queries in order.

Layers that process tokens independently take the queries of all rows packed, without padding. Attention needs
padding, because each row has its own keys: rows with fewer queries than the widest one repeat their root.
"""

from functools import cached_property, lru_cache, wraps

import numba
import numpy as np
import torch

from pools.tree import DraftBatch


class Tree:
    """T queries of one forward pass: for each of R rows its root, then its draft nodes. Read only.

    Attributes
    ----------
    host : tuple of int64 (T,), (T,), (T,) and (R + 1,)
        Tokens, parents, depths and starts. A parent comes before its children; a root is its
        own parent and has depth 0. Row r has the queries from ``starts[r]`` to ``starts[r + 1]``.
    width : int
        W, the queries of the widest row.
    depth : int
        Depth of the deepest node.
    scores : float32 (T,)
        Estimated probability that the path to a node is accepted; 1 for roots.
    padding : tuple of int64 (R * W,) and (T,)
        For rows padded to R x W places: the query in each place (the root in padding), and the place of
        each query.
    uniform : bool
        Whether all rows have the same number of queries.
    """

    def __init__(self, host: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], width: int, depth: int,
                 scores: np.ndarray, padding: tuple[np.ndarray, np.ndarray]):
        self.host, self.width, self.depth, self.scores, self.padding = host, width, depth, scores, padding
        self.starts = host[3]
        self.uniform = len(padding[0]) == len(padding[1])
        self._original: Tree | None = None  # of a copy on another device: the tree on the CPU

    def __len__(self) -> int:
        return len(self.host[0])

    @property
    def on_cpu(self) -> "Tree":
        """This tree, or the one on the CPU that it was copied from."""
        return self if self._original is None else self._original

    @cached_property
    def tokens(self) -> torch.Tensor:
        """int64 (T,). Tensors are created on first use, or by ``to``."""
        return torch.from_numpy(self.host[0])

    @cached_property
    def parents(self) -> torch.Tensor:
        """int64 (T,): index of each query's parent among the T queries; roots are their own."""
        return torch.from_numpy(self.host[1])

    @cached_property
    def depths(self) -> torch.Tensor:
        """int64 (T,): depth of each query below its root; 0 for roots."""
        return torch.from_numpy(self.host[2])

    @cached_property
    def rows(self) -> torch.Tensor:
        """int64 (T,): row of each query."""
        return torch.from_numpy(np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts)))

    @cached_property
    def ancestors(self) -> torch.Tensor:
        """bool (T, W): [t, j] is whether query j of t's row (0: the root) is t or an ancestor of t."""
        ancestors = np.zeros((len(self), self.width), np.bool_)
        _mark_ancestors(self.host[1], self.starts, ancestors)
        return torch.from_numpy(ancestors)

    def to(self, device: torch.device) -> "Tree":
        """Return the tree with its tensors on another device."""
        if device.type == "cpu":
            return self
        moved = Tree(self.host, self.width, self.depth, self.scores, self.padding)
        moved._original = self
        for name in ("tokens", "parents", "depths", "rows", "ancestors"):
            setattr(moved, name, getattr(self, name).to(device, non_blocking=True))
        return moved


def build(roots: np.ndarray, drafts: DraftBatch, deepest: np.ndarray) -> Tree:
    """Build trees on the CPU.

    Parameters
    ----------
    roots : int64 (R,)
        Root tokens.
    drafts : DraftBatch
    deepest : int64 (R,)
        Maximum depth of each row. Deeper nodes are left out.
    """
    rows = len(roots)
    if not drafts.nodes:
        host, padding, scores = _root_only(rows)
        return Tree((roots.astype(np.int64), *host), 1, 0, scores, padding)
    max_queries = rows * (1 + drafts.nodes)
    host = np.empty((5, max_queries), np.int64)
    starts, scores = np.empty(rows + 1, np.int64), np.empty(max_queries, np.float32)
    draft_scores = drafts.scores if drafts.scores is not None else np.ones(drafts.tokens.shape, np.float32)
    width, depth = _lay_out(roots, deepest, drafts.tokens, drafts.parents, drafts.sizes, draft_scores, host,
                            scores, starts)
    total = starts[-1]
    tokens, parents, depths, places = host[:4, :total]
    return Tree((tokens, parents, depths, starts), width, depth, scores[:total],
                (host[4, : rows * width], places))


@lru_cache(maxsize=8)
def _root_only(rows: int) -> tuple:
    """Return parents, depths and starts, ``padding`` and scores of trees without drafts; read only."""
    index = np.arange(rows)
    return (index, np.zeros(rows, np.int64), np.arange(rows + 1)), (index, index), np.ones(rows, np.float32)


@numba.njit(cache=True)
def _lay_out(roots, deepest, draft_tokens, draft_parents, sizes, draft_scores, host, scores, starts):
    """Fill in the queries except those that are too deep; return the width and the greatest depth."""
    tokens, parents, depths, query_places, padded_queries = host
    at, width, depth = 0, 1, 0
    places = np.empty(draft_tokens.shape[1] + 1, np.int64)  # query of the root and of each node; -1: left out
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
    _fill_padding(starts, width, query_places, padded_queries)
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
    """Padding of T packed queries to R rows of W places. Read only.

    Parameters
    ----------
    rows, width : int
        R and W.
    queries : int64 (R * W,)
        Query in each place.
    places : int64 (T,)
        Place of each query.
    starts : int64 (R + 1,)
        On a CPU: as of the tree.
    parts : list of (int, int, int)
        On a CPU: each row's first query, the end of its queries, and the cache columns that they see.
    padding : float
        On a CPU: pairs of a query and a column with padding, divided by those without.
    """

    def __init__(self, rows: int, width: int, queries: torch.Tensor, places: torch.Tensor):
        self.rows, self.width, self.queries, self.places = rows, width, queries, places
        self.parts: list[tuple[int, int, int]] = []
        self.starts = np.empty(0, np.int64)
        self.padding = 1.0

    @classmethod
    def of(cls, tree: Tree, lengths: np.ndarray) -> "PaddedLayout":
        """The layout of a tree's queries, on the tree's device, padded to its widest row.

        ``lengths`` int64 (R,): cache entries before each row's queries.
        """
        queries, places = map(torch.from_numpy, tree.padding)
        if (device := tree.tokens.device).type != "cpu":
            return cls(len(tree.starts) - 1, tree.width, queries.to(device), places.to(device))
        layout = cls(len(tree.starts) - 1, tree.width, queries, places)
        layout.starts, starts = tree.starts, tree.starts.tolist()
        counts = np.diff(tree.starts)
        columns = np.where(counts > 0, lengths + counts, 0)
        layout.parts = list(zip(starts[:-1], starts[1:], columns.tolist(), strict=True))
        layout.padding = float(len(queries) * columns.max() / (counts @ columns))
        return layout

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """Pad packed states: (1, H, T, D) -> (R, H, W, D)."""
        _, heads, _, dim = states.shape
        padded = states[0].index_select(1, self.queries)
        return padded.reshape(heads, self.rows, self.width, dim).transpose(0, 1)

    def unpad(self, states: torch.Tensor) -> torch.Tensor:
        """Remove padding: (R, W, ...) -> (T, ...)."""
        return states.flatten(0, 1).index_select(0, self.places)


def without_gradients(method):
    """Enter ``torch.inference_mode`` only if the caller has not: entering takes noticeable time per step."""
    entering = torch.inference_mode()(method)

    @wraps(method)
    def call(*args, **kwargs):
        return (method if torch.is_inference_mode_enabled() else entering)(*args, **kwargs)

    return call


def in_order(parts: list[tuple[np.ndarray, torch.Tensor]]) -> torch.Tensor:
    """Return the logits (T, V) of several forward passes, each with its logits' places int64 among them."""
    order, logits = np.argsort(np.concatenate([places for places, _ in parts])), [part for _, part in parts]
    joined = logits[0] if len(logits) == 1 else torch.cat(logits)
    return joined if (np.diff(order) > 0).all() else joined[torch.from_numpy(order).to(joined.device)]
