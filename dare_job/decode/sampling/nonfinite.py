"""Drafted nodes without numbers, which spoil all of their row's tree: which they are, and a verdict on the
tree as it was drawn from a forward without them.

What was drawn may not be put aside for what was in it: rows whose drafts hold such a node, and rows whose
drafts hold none, have the target's law together and neither has it alone.
"""

from collections.abc import Callable

import numpy as np

from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.result import VerificationResult
from pools.tree import ROOT, DraftBatch


def finite_nodes(drafts: DraftBatch, spoilt: np.ndarray,
         has_numbers: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """bool (R, N): the nodes that leave each row its numbers; without those behind a node that does not.

    spoilt       bool (R,): rows that have none with all of their nodes
    has_numbers  of nodes bool (R, N): the rows (R,) that have numbers where these alone are drafted; asked
                 once, and then for each node that has to go about log2 N times, for all rows together
    """
    places, sizes = np.arange(drafts.nodes), drafts.sizes.astype(np.int64)
    keep = places < sizes[:, None]
    searched = spoilt & has_numbers(np.zeros_like(keep))
    keep[spoilt & ~searched] = False
    # The nodes before ``low`` leave the row its numbers, those before ``high`` do not.
    low, high = np.zeros_like(sizes), sizes.copy()
    while searched.any():
        upto = np.where(high > sizes, sizes, (low + high) // 2)
        fine = has_numbers(keep & searched[:, None] & (places < upto[:, None]))
        low, high = np.where(fine, upto, low), np.where(fine, high, upto)
        for row in np.flatnonzero(searched & (high - low == 1) & (low < sizes)):
            _drop_subtree(keep[row], drafts.parents[row], low[row], sizes[row])
            low[row], high[row] = low[row] + 1, sizes[row] + 1  # above: all that is left is tried first
        searched &= low < sizes
    return keep


def _drop_subtree(keep: np.ndarray, parents: np.ndarray, node: int, size: int) -> None:
    keep[node] = False
    for behind in range(node + 1, size):
        keep[behind] &= parents[behind] == ROOT or keep[parents[behind]]


def select_nodes(drafts: DraftBatch, keep: np.ndarray) -> DraftBatch:
    """The nodes bool (R, N) alone, in their order; a node's parent is among them."""
    found = DraftBatch(*(np.zeros_like(part) for part in drafts))
    for row, own in enumerate(keep):
        columns = np.flatnonzero(own)
        moved = np.full(drafts.nodes + 1, ROOT, np.int32)
        moved[1 + columns] = np.arange(len(columns))
        for part, whole in zip(found, drafts, strict=True):
            if part.ndim == 2:
                part[row, : len(columns)] = whole[row, columns]
        found.parents[row, : len(columns)] = moved[1 + drafts.parents[row, columns]]
        found.sizes[row] = len(columns)
    return found


def kept_queries(tree: Tree, keep: np.ndarray) -> np.ndarray:
    """bool (T,): the queries of a tree of all nodes that the tree of the kept ones has, too."""
    own = np.ones((len(keep), keep.shape[1] + 1), np.bool_)
    own[:, 1:] = keep
    return own[np.arange(own.shape[1]) < np.diff(tree.starts)[:, None]]


def restrict_to_queries(verdict: VerificationResult, tree: Tree, there: np.ndarray) -> VerificationResult:
    """A verdict on a tree as one of the forward, which had the queries ``there`` alone, bool (T,).

    A path that ends at a node that was not there ends before it, and its token is the step's own: the next
    step finds no numbers behind it.
    """
    rows, starts = np.arange(len(verdict.counts)), tree.starts[:-1]
    ends = starts + verdict.paths[rows, verdict.counts]
    gone = ~there[ends]
    places = np.cumsum(there)
    paths = places[starts[:, None] + verdict.paths] - places[starts][:, None]
    return verdict._replace(counts=verdict.counts - gone, paths=paths, finite=verdict.finite | gone)
