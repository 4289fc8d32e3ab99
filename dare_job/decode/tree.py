"""Draft trees as the target model and the verifiers need them: one query a node, and who sees whom."""

from dataclasses import dataclass
from functools import lru_cache

import numba
import numpy as np
import torch

from pools.tree import DraftBatch


@dataclass(frozen=True)
class Tree:
    """Queries of one forward; column 0 is the root, then come the draft nodes.

    tokens     int64 (R, Q)
    parents    int64 (R, Q)     column of the parent; the root is its own
    depths     int64 (R, Q)     root 0
    ancestors  bool (R, Q, Q)   [r, i, j]: j is i or an ancestor of i
    valid      bool (R, Q)      False in padding, which sees only itself and hangs on the root
    depth      depth of the deepest node
    host       tokens, parents, depths and valid as numpy arrays
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    ancestors: torch.Tensor
    valid: torch.Tensor
    depth: int
    host: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

    def to(self, device: torch.device) -> "Tree":
        """The same tree with its tensors on another device."""
        if device.type == "cpu":
            return self
        tensors = (self.tokens, self.parents, self.depths, self.ancestors, self.valid)
        return Tree(*(x.to(device, non_blocking=True) for x in tensors), self.depth, self.host)


def build(roots: np.ndarray, drafts: DraftBatch, deepest: np.ndarray) -> Tree:
    """Trees of the root tokens (R,) and their drafts, on the CPU.

    Padding beyond the largest tree is cut; nodes deeper than ``deepest`` (R,) become padding.
    """
    rows = len(roots)
    queries = 1 + (int(drafts.sizes.max()) if drafts.nodes else 0)
    if queries == 1:
        tokens = roots.astype(np.int64)[:, None]
        tensors, host = _root_only(rows)
        return Tree(torch.from_numpy(tokens), *tensors, 0, (tokens, *host))
    tokens = np.empty((rows, queries), np.int64)
    parents = np.zeros((rows, queries), np.int64)
    depths = np.zeros((rows, queries), np.int64)
    ancestors = np.zeros((rows, queries, queries), np.bool_)
    valid = np.zeros((rows, queries), np.bool_)
    depth = _fill(roots, deepest, drafts.tokens, drafts.parents, drafts.sizes,
                  tokens, parents, depths, ancestors, valid)
    tensors = map(torch.from_numpy, (tokens, parents, depths, ancestors, valid))
    return Tree(*tensors, depth, (tokens, parents, depths, valid))


@lru_cache(maxsize=8)
def _root_only(rows: int) -> tuple[tuple[torch.Tensor, ...], tuple[np.ndarray, ...]]:
    """All of trees without drafts but their tokens, as tensors and as arrays: nobody writes to them."""
    zeros, ones = np.zeros((rows, 1), np.int64), np.ones((rows, 1), np.bool_)
    tensors = map(torch.from_numpy, (zeros, zeros, ones[:, None], ones))
    return tuple(tensors), (zeros, zeros, ones)


@numba.njit(cache=True)
def _fill(roots, deepest, draft_tokens, draft_parents, sizes, tokens, parents, depths, ancestors, valid):
    rows, queries = tokens.shape
    depth = 0
    for r in range(rows):
        tokens[r, 0] = roots[r]
        ancestors[r, 0, 0] = True
        valid[r, 0] = True
        for i in range(1, queries):
            ancestors[r, i, i] = True
            tokens[r, i] = roots[r]
            if i > sizes[r]:
                continue
            parent = draft_parents[r, i - 1] + 1
            if not valid[r, parent] or depths[r, parent] >= deepest[r]:
                continue
            tokens[r, i] = draft_tokens[r, i - 1]
            parents[r, i] = parent
            depths[r, i] = depths[r, parent] + 1
            depth = max(depth, depths[r, i])
            valid[r, i] = True
            for j in range(i):
                ancestors[r, i, j] = ancestors[r, parent, j]
    return depth
