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
    """Masks (R, 1, W, L) of token trees, by tensor operations for any device.

    layout   of uneven rows, whose padding sees what the root does; None: every row has W queries
    lengths  (R,): tokens before the root, in columns 0 ... lengths - 1; a row's queries stand in columns
             longest ... longest + W - 1
    """
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


def in_place(traits: Traits, layout: Layout, inputs, columns: int, dtype):
    """Masks (R, 1, W, columns) of trees that stand directly behind their rows' own text (``static.Inputs``).

    The tree's query j stands in column length + j; which ones a query sees is looked up by column.
    """
    rows, width = layout.rows, layout.width
    ancestors = inputs.ancestors[layout.queries].view(rows, width, width)
    index = torch.arange(columns, device=ancestors.device)
    behind = index - inputs.lengths[:, None]  # (R, columns): from 0 on, the tree's
    node = behind.clamp(0, width - 1)
    of_tree = (behind >= 0) & (behind < width)
    seen = ancestors.gather(2, node[:, None].expand(-1, width, -1)) & of_tree[:, None]
    seen |= (behind < 0)[:, None]
    apart = None
    if traits.window is not None:
        positions = inputs.lengths[:, None] + inputs.depths[layout.queries].view(rows, width)
        places = torch.where(of_tree, positions.gather(1, node), index)
        apart = positions[:, :, None] - places[:, None]
    return _by_kind(traits, seen, apart, dtype)


def on_cpu(traits: Traits, tree: Tree, lengths: np.ndarray, longest: int, dtype: torch.dtype):
    """Each query's position int64 (T,), and ``tree``, in one pass over the mask."""
    width, low = tree.width, torch.finfo(dtype).min
    positions = np.empty(len(tree), np.int64)
    masks = np.empty((len(traits.kinds), len(lengths), 1, width, longest + width), np.float32)
    for kind, mask in zip(traits.kinds, masks, strict=True):
        _fill(mask, *tree.host[1:], lengths, longest, traits.window if kind == SLIDING else _NO_WINDOW, low,
              positions)
    masks = torch.from_numpy(masks)
    if dtype != torch.float32:
        masks = masks.to(dtype)
    one = len(traits.kinds) == 1
    return torch.from_numpy(positions), masks[0] if one else dict(zip(traits.kinds, masks, strict=True))


@numba.njit(cache=True)
def _fill(mask, parents, depths, starts, lengths, longest, window, low, positions):
    rows, _, width, _ = mask.shape
    for r in range(rows):
        start, queries, length = starts[r], starts[r + 1] - starts[r], lengths[r]
        for i in range(width):
            t = start + i if i < queries else start  # padding sees what the root does
            position = length + depths[t]
            positions[t] = position
            line = mask[r, 0, i]
            first = max(0, min(length, position - window + 1))
            line[:first] = low
            line[first:length] = 0
            line[length:] = low
            up = t
            while depths[t] - depths[up] < window:
                line[longest + up - start] = 0
                if parents[up] == up:
                    break
                up = parents[up]


def _by_kind(traits: Traits, seen: torch.Tensor, apart: torch.Tensor | None, dtype, rows: int = -1):
    masks = {
        kind: _additive(seen & (apart < traits.window) if kind == SLIDING else seen, dtype)
        .expand(rows, -1, -1, -1) for kind in traits.kinds
    }
    return masks if len(masks) > 1 else masks[traits.kinds[0]]


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.full(seen.shape, torch.finfo(dtype).min, dtype=dtype, device=seen.device)
    return mask.masked_fill_(seen, 0.0)[:, None]
