"""Drafts with the law that they were drawn by: what an exact verifier has to be told."""

from typing import NamedTuple

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.sampling.distributions import NONE
from dare_job.decode.sampling.verify import CandidateTrees
from pools.tree import DraftBatch


class SampledDrafts(NamedTuple):
    """Trees of R rows with N nodes at most, and how each node's children were drawn.

    drafts   the trees: parents before children, siblings distinct. Its scores are paths' probabilities under
             q, in no order. A verifier must have all candidates of a node or none: which of them are left
             out may not depend on what was drawn
    laws     name of the law (``sampling.laws``) of the candidates of every node of a row, for each of R rows
    columns  int32 (R, N + 1, K): of the root (0) and of the node in column i (i + 1), the columns of its
             candidates in the order in which they were drawn; a column is there twice where a token was
             drawn twice. NONE behind the last
    asked    int32 (R, N + 1): how many candidates the law was asked for: more than there are where the
             support has fewer; 0: the node has no children
    places   int32 (R, N + 1): line of ``q`` of a node that has children, NONE of the others
    q        float32 (M, V): probabilities after warping that the candidates were drawn from
    """

    drafts: DraftBatch
    laws: tuple[str, ...]
    columns: np.ndarray
    asked: np.ndarray
    places: np.ndarray
    q: torch.Tensor

    def by_law(self) -> dict[str, np.ndarray]:
        """Rows int64 (M,) of each law: as many walks, with the ``Candidates.roots`` of these rows alone."""
        return {law: np.flatnonzero([one == law for one in self.laws]) for law in dict.fromkeys(self.laws)}

    def tokens(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Candidates int64 (M, K) of nodes (M,), the root being 0, of rows (M,); NONE behind the last."""
        columns = self.columns[rows, nodes]
        if not self.drafts.nodes:
            return columns.astype(np.int64)
        found = self.drafts.tokens[rows[:, None], np.maximum(columns, 0)]
        return np.where(columns >= 0, found, NONE).astype(np.int64)

    def on(self, tree: Tree) -> tuple[CandidateTrees, "QueryProbabilities"]:
        """The same as the T queries of the ``Tree`` that was built of ``drafts``, for ``walk`` and
        ``traverse``, with q behind each query; of leaves it says nothing.

        Nodes that were too deep for the tree are not there: their parents must have none of them either.
        """
        starts, counts = tree.starts[:-1], np.diff(tree.starts)
        if (counts != self.drafts.sizes + 1).any():
            raise ValueError("a tree without some of the nodes that were drawn cannot be verified exactly")
        row = np.repeat(np.arange(len(counts)), counts)
        node = np.arange(len(row)) - np.repeat(starts, counts)
        columns, device = self.columns[row, node].astype(np.int64), self.q.device
        children = np.where(columns >= 0, columns + 1 + starts[row, None], NONE)
        parts = (torch.from_numpy(part).to(device) for part in
                 (starts.astype(np.int64), children, self.asked[row, node].astype(np.int64)))
        roots, children, draws = parts
        places = torch.from_numpy(np.maximum(self.places[row, node], 0).astype(np.int64)).to(device)
        return CandidateTrees(roots, tree.tokens.to(device), children, draws), QueryProbabilities(
            self.q, places
        )


class QueryProbabilities:
    """q behind the queries that are asked for: ``q[queries]`` is float32 (M, V)."""

    def __init__(self, q: torch.Tensor, places: torch.Tensor):
        """q as in ``SampledDrafts``; places int64 (T,): its line for each query."""
        self._q, self._places = q if len(q) else q.new_zeros((1, q.shape[1])), places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, queries: torch.Tensor) -> torch.Tensor:
        return self._q[self._places[queries]]
