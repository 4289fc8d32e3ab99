"""Draft nodes that make their row's logits non-finite (NaN or Inf): find them and verify without them.

A non-finite node makes the logits of its whole row non-finite. Dropping a sampled draft because of its
content would bias the output, so the sampled tree is still verified as it was sampled, with a forward pass
that leaves those nodes out.
"""

from collections.abc import Callable

import numpy as np

from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.result import VerificationResult
from pools.tree import ROOT, DraftBatch


def finite_nodes(drafts: DraftBatch, nonfinite: np.ndarray,
                 is_finite: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Find the nodes bool (R, N) with which each row's logits are finite; descendants of dropped nodes are
    dropped.

    Parameters
    ----------
    drafts
        Draft trees of R rows.
    nonfinite : bool (R,)
        Rows that are non-finite with all of their nodes.
    is_finite
        Maps nodes bool (R, N) to the rows (R,) that are finite with these nodes alone; called once, and then
        about log2 N times per dropped node, for all rows together.
    """
    columns, sizes = np.arange(drafts.nodes), drafts.sizes.astype(np.int64)
    keep = columns < sizes[:, None]
    searching = nonfinite & is_finite(np.zeros_like(keep))
    keep[nonfinite & ~searching] = False
    # Invariant: with the nodes before ``low`` the row is finite, with those before ``high`` it is not.
    low, high = np.zeros_like(sizes), sizes.copy()
    while searching.any():
        end = np.where(high > sizes, sizes, (low + high) // 2)
        finite = is_finite(keep & searching[:, None] & (columns < end[:, None]))
        low, high = np.where(finite, end, low), np.where(finite, high, end)
        for row in np.flatnonzero(searching & (high - low == 1) & (low < sizes)):
            _drop_subtree(keep[row], drafts.parents[row], low[row], sizes[row])
            low[row], high[row] = low[row] + 1, sizes[row] + 1  # beyond the size: first try all other nodes
        searching &= low < sizes
    return keep


def _drop_subtree(keep: np.ndarray, parents: np.ndarray, node: int, size: int) -> None:
    keep[node] = False
    for later in range(node + 1, size):
        keep[later] &= parents[later] == ROOT or keep[parents[later]]


def select_nodes(drafts: DraftBatch, keep: np.ndarray) -> DraftBatch:
    """Return the trees of these nodes bool (R, N) alone, in order; every node's parent must be selected."""
    selected = DraftBatch(*(np.zeros_like(part) for part in drafts))
    for row, kept in enumerate(keep):
        columns = np.flatnonzero(kept)
        new_columns = np.full(drafts.nodes + 1, ROOT, np.int32)
        new_columns[1 + columns] = np.arange(len(columns))
        for part, whole in zip(selected, drafts, strict=True):
            if part.ndim == 2:
                part[row, : len(columns)] = whole[row, columns]
        selected.parents[row, : len(columns)] = new_columns[1 + drafts.parents[row, columns]]
        selected.sizes[row] = len(columns)
    return selected


def kept_queries(tree: Tree, keep: np.ndarray) -> np.ndarray:
    """Return which queries bool (T,) of the full tree are in the tree of the kept nodes."""
    kept = np.ones((len(keep), keep.shape[1] + 1), np.bool_)
    kept[:, 1:] = keep
    return kept[np.arange(kept.shape[1]) < np.diff(tree.starts)[:, None]]


def restrict_to_queries(result: VerificationResult, tree: Tree, present: np.ndarray) -> VerificationResult:
    """Convert a result on the full tree to one on the forward pass that had only the queries ``present``,
    bool (T,).

    A path that ends at a missing node ends one node earlier instead, with the missing node's token as the
    step's own token. The next step finds that the logits after it are non-finite.
    """
    rows, starts = np.arange(len(result.counts)), tree.starts[:-1]
    ends = starts + result.paths[rows, result.counts]
    missing = ~present[ends]
    places = np.cumsum(present)
    paths = places[starts[:, None] + result.paths] - places[starts][:, None]
    return result._replace(counts=result.counts - missing, paths=paths, finite=result.finite | missing)
