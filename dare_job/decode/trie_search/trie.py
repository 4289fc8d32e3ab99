"""The prefix trie of item ids: compressed sparse rows, a node's children side by side.

Knows codes alone; which token a code is, a model says (``Vocabulary``). Nodes are numbered level by level,
those of a level in lexicographic order of their prefixes: children of a node have consecutive numbers, and so
have the leaves below it.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from dare_job.errors import ConfigError

ROOT, NONE = 0, -1  # node 0; no node


@dataclass(frozen=True)
class Trie:
    """n nodes of L + 1 levels, level 0 the root alone. numpy arrays, read only.

    codes     int32 (n,): last code of a node's prefix; the root's is -1
    levels    int32 (n,): codes of its prefix
    parents   int64 (n,): the root's is -1
    first     int64 (n,): its first child
    counts    int64 (n,): of its children; 0: a leaf
    starts    int64 (L + 2,): nodes of level l are those from starts[l] up to starts[l + 1]
    leaf_ends int64 (n, 2): leaves below it, the first one and the end, counted from 0
    rows      int64 (items,): leaf of each row of codes that the trie was built from
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
    def of(cls, codes: np.ndarray) -> "Trie":
        """codes int (items, L), rows may repeat. Raises ConfigError for a table without rows or columns."""
        codes = np.asarray(codes)
        if codes.ndim != 2 or not codes.size:
            raise ConfigError(f"a trie of ids needs a table (items, codes of an id), not {codes.shape}")
        paths, rows = np.unique(codes, axis=0, return_inverse=True)
        leaves, length = paths.shape
        new = np.ones((leaves, length), np.bool_)  # [i, l]: path i begins another node of level l + 1
        new[1:] = np.logical_or.accumulate(paths[1:] != paths[:-1], axis=1)
        number = np.cumsum(new, axis=0) - 1  # (leaves, L): that node, among those of its level
        sizes = np.concatenate(([1], number[-1] + 1))
        starts = np.concatenate(([0], np.cumsum(sizes)))
        begins = [np.zeros(1, np.int64), *(np.flatnonzero(new[:, level]) for level in range(length))]
        above = [np.full(1, NONE), np.zeros(sizes[1], np.int64), *(
            starts[level] + number[begins[level + 1], level - 1] for level in range(1, length))]
        parents = np.concatenate(above)
        total = starts[-1]
        ends = [np.append(begin[1:], leaves) for begin in begins]
        counts = np.bincount(parents[1:], minlength=total)
        return cls(
            codes=np.concatenate([[NONE], *(paths[begins[level + 1], level] for level in range(length))]
                                 ).astype(np.int32),
            levels=np.repeat(np.arange(length + 1), sizes).astype(np.int32), parents=parents,
            first=1 + np.cumsum(counts) - counts, counts=counts, starts=starts,
            leaf_ends=np.stack((np.concatenate(begins), np.concatenate(ends)), axis=1), rows=rows.ravel())

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def length(self) -> int:
        """Codes of an id, L."""
        return len(self.starts) - 2

    @property
    def leaves(self) -> int:
        return int(self.starts[-1] - self.starts[-2])

    @property
    def first_leaf(self) -> int:
        """Number of the node that is leaf 0."""
        return int(self.starts[-2])

    @cached_property
    def width(self) -> int:
        """Children of the node that has the most."""
        return int(self.counts.max())

    def paths(self, leaves: np.ndarray) -> np.ndarray:
        """Codes int32 (..., L) of leaves (...,), counted from 0."""
        return self.prefixes(leaves + self.first_leaf, self.length)

    def prefixes(self, nodes: np.ndarray, level: int) -> np.ndarray:
        """Codes int32 (..., level) of nodes (...,) of a level."""
        found = []
        for _ in range(level):
            found.append(self.codes[nodes])
            nodes = self.parents[nodes]
        return np.stack(found[::-1], axis=-1)

    def single_share(self, level: int) -> float:
        """Of the nodes of a level those that have one child: tokens behind them are forced."""
        return float(np.mean(self.counts[self.starts[level]:self.starts[level + 1]] == 1))


class Vocabulary:
    """A trie as a model sees it: its arrays on a device, and the token of each node.

    tokens                int64 (n,): token of each node; the root's is -1
    first, counts, token  the trie's arrays and the tokens as int64 tensors (n,) on the device
    """

    def __init__(self, trie: Trie, first_code_token: list[int], device: torch.device | str = "cpu"):
        """first_code_token: of each level, the token of code 0; tokens of a level are consecutive."""
        if len(first_code_token) != trie.length:
            raise ConfigError(f"ids of {trie.length} codes, but the model has tokens for "
                              f"{len(first_code_token)} levels (first_code_token)")
        base = np.concatenate(([0], first_code_token))
        self.trie, self.tokens = trie, base[trie.levels] + trie.codes
        self.device = torch.device(device)
        self.first, self.counts, self.token = (
            torch.from_numpy(array.astype(np.int64)).to(self.device)
            for array in (trie.first, trie.counts, self.tokens))

    def children(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """nodes (..., ), NONE where there is none -> children int64 (..., C) and bool (..., C): there is one.

        C: the most children that one of them has. A place without a child repeats the first one's number.
        """
        known = nodes.clamp_min(0)
        counts = torch.where(nodes >= 0, self.counts[known], 0)
        column = torch.arange(max(1, int(counts.max())) if counts.numel() else 1, device=self.device)
        there = column < counts[..., None]
        return self.first[known][..., None] + torch.where(there, column, 0), there
