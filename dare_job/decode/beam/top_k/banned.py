"""Ids that a user's list may not hold, and the prefixes that lead to nothing else."""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.beam.top_k.trie import Trie


class Banned:
    """Sorted keys row * n + node of what is banned, n nodes of the trie."""

    def __init__(self, keys: np.ndarray, nodes: int, device):
        self.keys, self.nodes = torch.from_numpy(keys).to(device), nodes

    @classmethod
    def of(cls, trie: Trie, leaves: Sequence[Sequence[int]], device) -> "Banned | None":
        """leaves: of each row, counted from 0. None: nothing is banned."""
        sizes = np.array([len(set(row)) for row in leaves], np.int64)
        if not sizes.any():
            return None
        rows = np.repeat(np.arange(len(leaves)), sizes)
        below = np.concatenate([np.unique(np.asarray(row, np.int64)) for row in leaves]) + trie.first_leaf
        keys, node = [], below
        for _ in range(trie.length):
            found, counts = np.unique(rows * len(trie) + node, return_counts=True)
            ends = trie.leaf_ends[found % len(trie)]
            keys.append(found[counts == ends[:, 1] - ends[:, 0]])
            node = trie.parents[node]
        return cls(np.sort(np.concatenate(keys)), len(trie), device)

    def among(self, rows: np.ndarray, nodes: torch.Tensor) -> torch.Tensor:
        """bool (S, ...): which of the nodes (S, ...) are banned for rows (S,)."""
        own = torch.from_numpy(rows).to(nodes.device).view(-1, *[1] * (nodes.ndim - 1))
        keys = own * self.nodes + nodes
        at = torch.searchsorted(self.keys, keys).clamp_max(len(self.keys) - 1)
        return self.keys[at] == keys
