"""Drafters without a model: item weights give prefix weights, as a node weighs the sum of its leaves."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import torch

from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.node_scores import Children
from dare_job.decode.trie_search.trie import Trie, Vocabulary

_SMOOTHING = 0.1  # interactions added to those of each leaf
_MAX_DISTANCE = 3  # steps between the leaves of a pair
_DECAY = 0.8  # of the weight of a history's leaves, per step back
_POPULARITY_SHARE = 0.3  # of transition weights


class LeafScorer:
    """Scores with P(child | node) = weight of the leaves below the child / weight of those below the node.

    Weights are computed on first use, so not at all where drafting does not pay.
    """

    reads: ClassVar[list[np.ndarray]] = []  # no model reads anything

    def __init__(self, vocabulary: Vocabulary, weights: "PopularityWeights"):
        self.vocabulary, self.weights = vocabulary, weights
        self._ends = torch.from_numpy(vocabulary.trie.leaf_ends).to(vocabulary.device)

    def begin(self, queries: Sequence[Query]) -> None:
        self._histories, self._sums = [query.history for query in queries], None

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        if self._sums is None:
            self._sums = self._before()
        on_device = torch.from_numpy(nodes).to(self.vocabulary.device)
        children, present = self.vocabulary.children(nodes)
        row_index = torch.from_numpy(rows).to(self.vocabulary.device)
        child_mass = self._mass(row_index[:, None, None], children).masked_fill(~present, 0)
        node_mass = self._mass(row_index[:, None], on_device.clamp_min(0))[..., None]
        return children, present, (child_mass / node_mass).log().float()

    def _before(self) -> torch.Tensor:
        """Return (R, leaves + 1), the total weight of the leaves before each leaf."""
        cumulative = np.pad(np.cumsum(self.weights.weigh(self._histories), axis=1), ((0, 0), (1, 0)))
        return torch.from_numpy(cumulative).to(self.vocabulary.device)

    def _mass(self, rows: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        begin, end = self._ends[nodes].unbind(-1)
        return self._sums[rows, end] - self._sums[rows, begin]


class PopularityWeights:
    """The same weights for all users: interactions of each leaf, smoothed; equal ones without interactions.
    """

    def __init__(self, trie: Trie, sequences: Iterable[Sequence[int]] = ()):
        """Count the leaves in each user's sequence."""
        leaves = np.concatenate([np.zeros(0, np.int64), *sequences]).astype(np.int64)
        counts = np.bincount(leaves, minlength=trie.leaves) + _SMOOTHING
        self.shares = counts / counts.sum()

    def weigh(self, histories: Sequence[Sequence[int]]) -> np.ndarray:
        """Return weights float64 (R, leaves), all positive, of users by their leaves so far, oldest first."""
        return np.broadcast_to(self.shares, (len(histories), len(self.shares)))


class TransitionWeights(PopularityWeights):
    """Weights by co-occurrence with the user's leaves within ``_MAX_DISTANCE`` steps, mixed with popularity.

    A pair of leaves i steps apart counts 1 / i, in both directions. The j-th last leaf of a history counts
    ``_DECAY`` ** j.
    """

    def __init__(self, trie: Trie, sequences: Sequence[Sequence[int]]):
        super().__init__(trie, sequences)
        pairs, weights = [], []
        for distance in range(1, _MAX_DISTANCE + 1):
            for sequence in sequences:
                earlier, later = sequence[:-distance], sequence[distance:]
                pairs += [np.stack((earlier, later)), np.stack((later, earlier))]
                weights.append(np.full(2 * len(earlier), 1 / distance))
        keys = np.concatenate(pairs, axis=1).astype(np.int64) if pairs else np.empty((2, 0), np.int64)
        flat, index = np.unique(keys[0] * trie.leaves + keys[1], return_inverse=True)
        counts = np.bincount(index, np.concatenate(weights) if weights else None, len(flat))
        source, self._leaves = np.divmod(flat, trie.leaves)
        totals = np.bincount(source, counts, trie.leaves)
        self._begin = np.searchsorted(source, np.arange(trie.leaves + 1))
        self._counts = counts / np.maximum(totals[source], 1e-300)

    def weigh(self, histories: Sequence[Sequence[int]]) -> np.ndarray:
        result = np.tile(self.shares, (len(histories), 1))
        for weights, history in zip(result, histories, strict=True):
            transition, total = np.zeros_like(weights), 0.0
            for back, leaf in enumerate(reversed(history)):
                begin, end = self._begin[leaf], self._begin[leaf + 1]
                if (share := _DECAY**back) < 1e-3:
                    break
                if end > begin:
                    transition[self._leaves[begin:end]] += share * self._counts[begin:end]
                    total += share
            if total:
                weights *= _POPULARITY_SHARE
                weights += (1 - _POPULARITY_SHARE) / total * transition
        return result
