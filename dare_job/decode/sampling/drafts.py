"""Drafts with the law that they were drawn by: what an exact verifier has to be told."""

from typing import NamedTuple

import numba
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


def deterministic_drafts(
    drafts: DraftBatch, vocabulary: int, device: torch.device | str = "cpu"
) -> SampledDrafts:
    """Drafts in which there is no chance, such as those of retrieval: a node's candidates are its children.

    Law ``top_k``: q falls along a node's children, in the order of their columns, and is 0 elsewhere, so that
    its most probable tokens are they. Any of them may be left out beforehand, as long as nothing was drawn.
    """
    rows, nodes = drafts.rows, drafts.nodes
    asked = np.zeros((rows, nodes + 1), np.int32)
    _count_children(drafts.parents, drafts.sizes, asked)
    columns = np.full((rows, nodes + 1, int(asked.max(initial=0))), NONE, np.int32)
    _list_children(drafts.parents, drafts.sizes, columns)
    places = np.where(asked > 0, np.cumsum(asked > 0).reshape(asked.shape) - 1, NONE).astype(np.int32)
    row, node = np.nonzero(asked)
    q = torch.zeros((len(row), vocabulary), device=device)
    found = SampledDrafts(drafts, ("top_k",) * rows, columns, asked, places, q)
    if len(row):
        tokens, counts = found.tokens(row, node), asked[row, node][:, None]
        shares = 2 * (counts - np.arange(tokens.shape[1])) / (counts * (counts + 1))
        line, place = np.nonzero(tokens >= 0)
        at = torch.from_numpy(line).to(device), torch.from_numpy(tokens[line, place]).to(device)
        found.q[at] = torch.from_numpy(shares[line, place].astype(np.float32)).to(device)
    return found


def select_sampled_drafts(chosen: np.ndarray, ones: SampledDrafts, others: SampledDrafts) -> SampledDrafts:
    """``ones`` for the rows of which ``chosen``, bool (R,), is true, else ``others``; of one vocabulary."""
    drafts = select_drafts(chosen, ones.drafts, others.drafts)
    shape = drafts.nodes + 1, max(ones.columns.shape[2], others.columns.shape[2])

    def fitted(x: np.ndarray, fill: int) -> np.ndarray:
        x = x[:, : shape[0]]
        return np.pad(x, [(0, 0), *((0, n - m) for n, m in zip(shape, x.shape[1:], strict=False))],
                      constant_values=fill)

    def pick(a: np.ndarray, b: np.ndarray, fill: int) -> np.ndarray:
        a, b = fitted(a, fill), fitted(b, fill)
        return np.where(chosen.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

    behind = np.where(others.places >= 0, others.places + len(ones.q), NONE)
    laws = tuple(a if one else b for one, a, b in zip(chosen, ones.laws, others.laws, strict=True))
    return SampledDrafts(drafts, laws, pick(ones.columns, others.columns, NONE),
                         pick(ones.asked, others.asked, 0), pick(ones.places, behind.astype(np.int32), NONE),
                         torch.cat((ones.q, others.q)))


def select_drafts(chosen: np.ndarray, ones: DraftBatch, others: DraftBatch) -> DraftBatch:
    """The same of drafts in which there is no chance."""
    sizes = np.where(chosen, ones.sizes, others.sizes)
    nodes = int(sizes.max(initial=0))
    parts = []
    for a, b in zip(ones, others, strict=True):
        if a.ndim == 2:
            a, b = (np.pad(x[:, :nodes], ((0, 0), (0, max(0, nodes - x.shape[1])))) for x in (a, b))
        parts.append(np.where(chosen if a.ndim == 1 else chosen[:, None], a, b))
    return DraftBatch(*parts)


@numba.njit(cache=True)
def _count_children(parents, sizes, asked):
    for r in range(len(sizes)):
        for i in range(sizes[r]):
            asked[r, parents[r, i] + 1] += 1


@numba.njit(cache=True)
def _list_children(parents, sizes, columns):
    for r in range(len(sizes)):
        for i in range(sizes[r]):
            at = 0
            while columns[r, parents[r, i] + 1, at] >= 0:
                at += 1
            columns[r, parents[r, i] + 1, at] = i
