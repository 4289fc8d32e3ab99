"""Additive attention masks over cache columns: ragged rows, draft trees, sliding windows.

Every mask is (R, 1, Q, L) in the model's dtype, 0 where a query sees a column. Models that mix full and
sliding layers take one for each kind, as a dictionary.
"""

import numba
import numpy as np
import torch

from dare_job.decode.layout import Layout
from dare_job.decode.support import SLIDING, Traits
from dare_job.decode.tree import Tree

_NO_WINDOW = 2**40

def prompt(traits: Traits, rows: int, start: int, longest: int, dtype: torch.dtype, device):
    """Masks (R, 1, P - start, P) of right-padded prompts whose first ``start`` tokens were read before.

    Padding stands behind all that a real token sees. The rows share one mask's memory; there are as many as
    prompts because some models insist.
    """
    index = torch.arange(longest, device=device)
    apart = index[start:, None] - index
    return _by_kind(traits, (apart >= 0)[None], apart[None], dtype, rows)


def tree(traits: Traits, tree: Tree, layout: Layout | None, lengths: torch.Tensor, longest: int, dtype):
    """Masks (R, 1, W, L) of token trees.

    layout   of uneven rows, whose padding sees what the root does; None: every row has W queries
    lengths  (R,): tokens before the root, in columns 0 ... lengths - 1; a row's queries stand in columns
             longest ... longest + W - 1
    """
    if lengths.device.type == "cpu":
        return _on_cpu(traits, tree, lengths.numpy(), longest, dtype)
    return from_tensors(traits, tree, layout, lengths, longest, dtype)


def from_tensors(traits: Traits, tree: Tree, layout: Layout | None, lengths: torch.Tensor, longest: int,
                 dtype):
    """``tree`` by tensor operations, for any device."""
    rows, width = len(lengths), tree.width
    ancestors = tree.ancestors if layout is None else tree.ancestors[layout.queries]
    columns = torch.arange(longest, device=lengths.device)
    seen = torch.empty((rows, width, longest + width), dtype=torch.bool, device=lengths.device)
    seen[:, :, :longest] = (columns < lengths[:, None])[:, None]
    seen[:, :, longest:] = ancestors.view(rows, width, width)
    apart = None
    if traits.window is not None:
        depths = tree.depths if layout is None else tree.depths[layout.queries]
        positions = lengths[:, None] + depths.view(rows, width)
        places = torch.cat((columns.expand(rows, -1), positions), 1)
        apart = positions[:, :, None] - places[:, None]
    return _by_kind(traits, seen, apart, dtype)


def _on_cpu(traits: Traits, tree: Tree, lengths: np.ndarray, longest: int, dtype: torch.dtype):
    """``tree`` in one pass over the mask."""
    masks, low = {}, torch.finfo(dtype).min
    for kind in traits.kinds:
        mask = np.empty((len(lengths), 1, tree.width, longest + tree.width), np.float32)
        _fill(mask, tree.starts, tree.host[2], tree.ancestors.numpy(), lengths, longest,
              traits.window if kind == SLIDING else _NO_WINDOW, np.float32(low))
        masks[kind] = torch.from_numpy(mask).to(dtype)
    return masks if len(masks) > 1 else masks[traits.kinds[0]]


@numba.njit(cache=True)
def _fill(mask, starts, depths, ancestors, lengths, longest, window, low):
    rows, _, width, _ = mask.shape
    for r in range(rows):
        start, queries, length = starts[r], starts[r + 1] - starts[r], lengths[r]
        for i in range(width):
            t = start + i if i < queries else start  # padding sees what the root does
            line = mask[r, 0, i]
            first = max(0, min(length, length + depths[t] - window + 1))
            line[:first] = low
            line[first:length] = 0
            line[length:] = low
            for j in range(queries):
                if ancestors[t, j] and depths[t] - depths[start + j] < window:
                    line[longest + j] = 0


def _by_kind(traits: Traits, seen: torch.Tensor, apart: torch.Tensor | None, dtype, rows: int = -1):
    masks = {
        kind: _additive(seen & (apart < traits.window) if kind == SLIDING else seen, dtype)
        .expand(rows, -1, -1, -1) for kind in traits.kinds
    }
    return masks if len(masks) > 1 else masks[traits.kinds[0]]


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.full(seen.shape, torch.finfo(dtype).min, dtype=dtype, device=seen.device)
    return mask.masked_fill_(seen, 0.0)[:, None]
