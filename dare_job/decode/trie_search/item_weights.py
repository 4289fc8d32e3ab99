"""Drafters without a model: whatever weighs items weighs prefixes, a node by the sum of the leaves below
it.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import torch

from dare_job.decode.trie_search.node_scores import Children
from dare_job.decode.trie_search.trie import Trie, Vocabulary

if TYPE_CHECKING:
    from dare_job.decode.trie_search.beams import Query


class ItemWeights(Protocol):
    def of(self, histories: Sequence[Sequence[int]]) -> np.ndarray:
        """Weights float64 (R, leaves), all above 0, of users by their leaves so far, the oldest first."""


class LeafScorer:
    """P(child | node) = weight of the leaves below the child / of those below the node.

    Users are weighed when they are first asked for: where drafts do not pay, nobody is.
    """

    reads: ClassVar[list[np.ndarray]] = []  # no model reads anything

    def __init__(self, vocabulary: Vocabulary, weights: ItemWeights):
        self.vocabulary, self.weights = vocabulary, weights
        self._ends = torch.from_numpy(vocabulary.trie.leaf_ends).to(vocabulary.device)

    def begin(self, queries: Sequence["Query"]) -> None:
        self._histories, self._sums = [query.history for query in queries], None

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        if self._sums is None:
            self._sums = self._before()
        on_device = torch.from_numpy(nodes).to(self.vocabulary.device)
        children, there = self.vocabulary.children(on_device)
        own = torch.from_numpy(rows).to(self.vocabulary.device)
        below = self._mass(own[:, None, None], children).masked_fill(~there, 0)
        whole = self._mass(own[:, None], on_device.clamp_min(0))[..., None]
        return children, there, (below / whole).log().float()

    def _before(self) -> torch.Tensor:
        """(R, leaves + 1): weight of the leaves before each one."""
        sums = np.pad(np.cumsum(self.weights.of(self._histories), axis=1), ((0, 0), (1, 0)))
        return torch.from_numpy(sums).to(self.vocabulary.device)

    def _mass(self, rows: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        begin, end = self._ends[nodes].unbind(-1)
        return self._sums[rows, end] - self._sums[rows, begin]


class UniformWeights:
    """All leaves weigh the same: for drafts of whole levels, which need no weights."""

    def __init__(self, trie: Trie):
        self.shares = np.full(trie.leaves, 1 / trie.leaves)

    def of(self, histories: Sequence[Sequence[int]]) -> np.ndarray:
        return np.broadcast_to(self.shares, (len(histories), len(self.shares)))


class PopularityWeights:
    """The same weights for everybody: how often each leaf was taken, and ``smoothing`` more."""

    def __init__(self, trie: Trie, sequences: Iterable[Sequence[int]], smoothing: float = 0.1):
        """sequences: leaves of each user."""
        counts = np.zeros(trie.leaves)
        for sequence in sequences:
            np.add.at(counts, np.asarray(sequence, np.int64), 1)
        self.shares = (counts + smoothing) / (counts + smoothing).sum()

    def of(self, histories: Sequence[Sequence[int]]) -> np.ndarray:
        return np.broadcast_to(self.shares, (len(histories), len(self.shares)))


class TransitionWeights:
    """What others took within ``reach`` steps behind, or before, the leaves of a user, mixed with popularity.

    The pair of leaves i steps apart counts 1 / i; the j-th last leaf of a history counts ``fading`` ** j.
    Behind one leaf: (1 - popular) * count / all its counts + popular * share of all leaves.
    """

    def __init__(self, trie: Trie, sequences: Sequence[Sequence[int]], reach: int = 3, fading: float = 0.8,
                 popular: float = 0.3, smoothing: float = 0.1):
        self.fading, self.popular = fading, popular
        self.shares = PopularityWeights(trie, sequences, smoothing).shares
        pairs, weights = [], []
        for apart in range(1, reach + 1):
            near = [(sequence[:-apart], sequence[apart:]) for sequence in sequences if len(sequence) > apart]
            for one, other in near:
                pairs += [np.stack((one, other)), np.stack((other, one))]
                weights.append(np.full(2 * len(one), 1 / apart))
        keys = np.concatenate(pairs, axis=1).astype(np.int64) if pairs else np.empty((2, 0), np.int64)
        flat, index = np.unique(keys[0] * trie.leaves + keys[1], return_inverse=True)
        counts = np.bincount(index, np.concatenate(weights) if weights else None, len(flat))
        whose, self._leaves = np.divmod(flat, trie.leaves)
        totals = np.bincount(whose, counts, trie.leaves)
        self._begin = np.searchsorted(whose, np.arange(trie.leaves + 1))
        self._counts = counts / np.maximum(totals[whose], 1e-300)

    def of(self, histories: Sequence[Sequence[int]]) -> np.ndarray:
        found = np.tile(self.shares, (len(histories), 1))
        for weights, history in zip(found, histories, strict=True):
            near, trust = np.zeros_like(weights), 0.0
            for back, leaf in enumerate(reversed(history)):
                begin, end = self._begin[leaf], self._begin[leaf + 1]
                if (share := self.fading ** back) < 1e-3:
                    break
                if end > begin:
                    near[self._leaves[begin:end]] += share * self._counts[begin:end]
                    trust += share
            if trust:
                weights *= self.popular
                weights += (1 - self.popular) / trust * near
        return found
