"""The prefix trie of item ids in compressed-sparse-row form.

It knows codes only; a ``Vocabulary`` maps codes to a model's tokens. Nodes are numbered level by level,
within a level in lexicographic order of their prefixes. The children of a node therefore have consecutive
numbers, and so have the leaves below it.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from dare_job.errors import ConfigError

ROOT, NONE = 0, -1  # node 0; no node


@dataclass(frozen=True)
class Trie:
    """A trie of n nodes on L + 1 levels, level 0 being the root. The arrays are numpy and read-only.

    Attributes
    ----------
    codes : int32 (n,)
        Last code of a node's prefix; -1 for the root.
    levels : int32 (n,)
        Length of its prefix.
    parents : int64 (n,)
        -1 for the root.
    first : int64 (n,)
        Its first child.
    counts : int64 (n,)
        Number of its children; 0 for a leaf.
    starts : int64 (L + 2,)
        Level l has the nodes starts[l] to starts[l + 1] - 1.
    leaf_ends : int64 (n, 2)
        First leaf below it and the end, counted from 0.
    rows : int64 (items,)
        Leaf of each row of the code table.
    """

    codes: np.ndarray
    levels: np.ndarray
    parents: np.ndarray
    first: np.ndarray
    counts: np.ndarray
    starts: np.ndarray
    leaf_ends: np.ndarray
    rows: np.ndarray

    @classmethod
    def from_codes(cls, codes: np.ndarray) -> "Trie":
        """Build a trie from codes int (items, L); rows may repeat.

        Raises
        ------
        ConfigError
            The table has no rows or no columns.
        """
        codes = np.asarray(codes)
        if codes.ndim != 2 or not codes.size:
            raise ConfigError(f"a trie needs a table of shape (items, codes per id), not {codes.shape}")
        paths, rows = np.unique(codes, axis=0, return_inverse=True)
        leaves, length = paths.shape
        starts_node = np.ones((leaves, length), np.bool_)  # [i, l]: path i starts another node of level l + 1
        starts_node[1:] = np.logical_or.accumulate(paths[1:] != paths[:-1], axis=1)
        number = np.cumsum(starts_node, axis=0) - 1  # (leaves, L): number of that node within its level
        sizes = np.concatenate(([1], number[-1] + 1))
        starts = np.concatenate(([0], np.cumsum(sizes)))
        first_leaves = [np.zeros(1, np.int64),
                        *(np.flatnonzero(starts_node[:, level]) for level in range(length))]
        parent_lists = [np.full(1, NONE), np.zeros(sizes[1], np.int64), *(
            starts[level] + number[first_leaves[level + 1], level - 1] for level in range(1, length))]
        parents = np.concatenate(parent_lists)
        total = starts[-1]
        ends = [np.append(begin[1:], leaves) for begin in first_leaves]
        counts = np.bincount(parents[1:], minlength=total)
        return cls(
            codes=np.concatenate([[NONE], *(paths[first_leaves[level + 1], level]
                                            for level in range(length))]).astype(np.int32),
            levels=np.repeat(np.arange(length + 1), sizes).astype(np.int32),
            parents=parents,
            first=1 + np.cumsum(counts) - counts,
            counts=counts,
            starts=starts,
            leaf_ends=np.stack((np.concatenate(first_leaves), np.concatenate(ends)), axis=1),
            rows=rows.ravel(),
        )

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def length(self) -> int:
        """Codes per id, L."""
        return len(self.starts) - 2

    @property
    def leaves(self) -> int:
        """Number of leaves, which are distinct ids."""
        return int(self.starts[-1] - self.starts[-2])

    @property
    def first_leaf(self) -> int:
        """Node number of leaf 0."""
        return int(self.starts[-2])

    @cached_property
    def width(self) -> int:
        """Maximum number of children of a node."""
        return int(self.counts.max())

    def paths(self, leaves: np.ndarray) -> np.ndarray:
        """Return codes int32 (..., L) of leaves (...,), counted from 0."""
        return self.prefixes(leaves + self.first_leaf, self.length)

    def prefixes(self, nodes: np.ndarray, level: int) -> np.ndarray:
        """Return codes int32 (..., level) of nodes (...,) of a level."""
        codes = []
        for _ in range(level):
            codes.append(self.codes[nodes])
            nodes = self.parents[nodes]
        return np.stack(codes[::-1], axis=-1)

    def single_share(self, level: int) -> float:
        """Return the share of a level's nodes with a single child, whose next token is forced."""
        return float(np.mean(self.counts[self.starts[level]:self.starts[level + 1]] == 1))


class Vocabulary:
    """A trie in a model's vocabulary, with its arrays on a device.

    Attributes
    ----------
    tokens : int64 (n,)
        Array, token of each node; -1 for the root.
    first, counts, token : int64 (n,)
        Tensors on the device, the trie's arrays and the tokens.
    """

    def __init__(self, trie: Trie, first_code_token: list[int], device: torch.device | str = "cpu"):
        """Take the token of code 0 for each level; the tokens of a level are consecutive.

        Raises
        ------
        ConfigError
            The number of tokens differs from the trie's levels.
        """
        if len(first_code_token) != trie.length:
            raise ConfigError(f"ids of {trie.length} codes, but the model has tokens for "
                              f"{len(first_code_token)} levels (first_code_token)")
        base = np.concatenate(([0], first_code_token))
        self.trie, self.tokens = trie, base[trie.levels] + trie.codes
        self.device = torch.device(device)
        self.first, self.counts, self.token = (
            torch.from_numpy(array.astype(np.int64)).to(self.device)
            for array in (trie.first, trie.counts, self.tokens))

    def children(self, nodes: torch.Tensor | np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the children int64 (..., C) of nodes (...,), and whether each is present, bool (..., C).

        C is the maximum number of children among the nodes, for which nodes on the host need no wait for the
        device. Absent children repeat the first child's number; nodes may be NONE.
        """
        width = None
        if isinstance(nodes, np.ndarray):
            width = np.where(nodes >= 0, self.trie.counts[np.maximum(nodes, 0)], 0).max(initial=1)
            nodes = torch.from_numpy(nodes).to(self.device)
        clamped = nodes.clamp_min(0)
        counts = torch.where(nodes >= 0, self.counts[clamped], 0)
        if width is None:
            width = max(1, int(counts.max())) if counts.numel() else 1
        column = torch.arange(int(width), device=self.device)
        present = column < counts[..., None]
        return self.first[clamped][..., None] + torch.where(present, column, 0), present
