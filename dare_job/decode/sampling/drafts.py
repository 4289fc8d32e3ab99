"""Draft trees together with the distributions that their candidates were sampled from."""

from typing import NamedTuple

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.sampling.distributions import NONE
from dare_job.decode.sampling.verify import CandidateTrees
from pools.tree import DraftBatch


class SampledDrafts(NamedTuple):
    """Draft trees of R rows with at most N nodes each, and how each node's children were sampled.

    Exact verification needs all candidates of a node or none of them. Which nodes are left out must not
    depend on the sampled tokens.

    Attributes
    ----------
    drafts
        The trees; parents before children, siblings distinct; scores are path probabilities under q.
    distribution
        Name of the draft distribution (``sampling.distributions``).
    columns : int32 (R, N + 1, K)
        For the root (0) and for the node in column i (i + 1) the columns of its candidates in sampling order;
        a token sampled twice is listed twice; NONE after the last.
    requested : int32 (R, N + 1)
        Number of candidates requested, more than sampled where the support is smaller; 0 for a leaf.
    q_rows : int32 (R, N + 1)
        Row of ``q`` of a node with children, else NONE.
    q : float32 (M, V)
        Warped probabilities that the candidates were sampled from.
    """

    drafts: DraftBatch
    distribution: str
    columns: np.ndarray
    requested: np.ndarray
    q_rows: np.ndarray
    q: torch.Tensor

    def on_tree(self, tree: Tree) -> tuple[CandidateTrees, "QueryProbabilities"]:
        """Return candidates and q for the T queries of the tree built from ``drafts``, as ``verify_trees``
        reads them.

        q of leaves is undefined.

        Raises
        ------
        ValueError
            The tree lacks some of the nodes, such as those that are too deep.
        """
        starts, counts = tree.starts[:-1], np.diff(tree.starts)
        if (counts != self.drafts.sizes + 1).any():
            raise ValueError("the tree lacks sampled nodes, so it cannot be verified exactly")
        row = np.repeat(np.arange(len(counts)), counts)
        node = np.arange(len(row)) - np.repeat(starts, counts)
        columns, device = self.columns[row, node].astype(np.int64), self.q.device
        children = np.where(columns >= 0, columns + 1 + starts[row, None], NONE)
        parts = (torch.from_numpy(part).to(device) for part in
                 (starts.astype(np.int64), children, self.requested[row, node].astype(np.int64)))
        roots, children, requested = parts
        q_rows = torch.from_numpy(np.maximum(self.q_rows[row, node], 0).astype(np.int64)).to(device)
        candidates = CandidateTrees(roots, tree.tokens.to(device), children, requested)
        return candidates, QueryProbabilities(self.q, q_rows)


class QueryProbabilities:
    """Draft probabilities by query: ``q[queries]`` is float32 (M, V)."""

    def __init__(self, q: torch.Tensor, q_rows: torch.Tensor):
        """Take q as in ``SampledDrafts`` and q_rows int64 (T,), the row of q for each query."""
        self._q, self._q_rows = q if len(q) else q.new_zeros((1, q.shape[1])), q_rows

    def __len__(self) -> int:
        return len(self._q_rows)

    def __getitem__(self, queries: torch.Tensor) -> torch.Tensor:
        return self._q[self._q_rows[queries]]
