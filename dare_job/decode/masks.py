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

NO_WINDOW = 2**40
LOW = {dtype: torch.finfo(dtype).min for dtype in (torch.float32, torch.bfloat16, torch.float16)}


def prompt(traits: Traits, rows: int, start: int, longest: int, dtype: torch.dtype, device):
    """Masks (R, 1, P - start, P) of right-padded prompts whose first ``start`` tokens were read before.

    Padding stands behind all that a real token sees. The rows share one mask's memory; there are as many as
    prompts because some models insist.
    """
    index = torch.arange(longest, device=device)
    apart = index[start:, None] - index
    return _by_kind(traits, (apart >= 0)[None], apart[None], dtype, rows)


def tree(traits: Traits, layout: Layout | None, ancestors: torch.Tensor, depths: torch.Tensor,
         lengths: torch.Tensor, columns: int, dtype):
    """Masks (R, 1, W, columns) of token trees that stand directly behind their rows' own text, by tensor
    operations for any device.

    layout     of uneven rows, whose padding sees what the root does; None: every row has W queries
    ancestors  bool (T, W) and depths int64 (T,), as in ``Tree``
    lengths    int64 (R,): tokens before the root; the tree's query j stands in column length + j
    """
    rows, width = len(lengths), ancestors.shape[1]
    if layout is not None:
        ancestors, depths = ancestors[layout.queries], depths[layout.queries]
    ancestors = ancestors.view(rows, width, width)
    index = torch.arange(columns, device=ancestors.device)
    behind = index - lengths[:, None]  # (R, columns): from 0 on, the tree's
    node = behind.clamp(0, width - 1)
    of_tree = (behind >= 0) & (behind < width)
    seen = ancestors.gather(2, node[:, None].expand(-1, width, -1)) & of_tree[:, None]
    seen |= (behind < 0)[:, None]
    apart = None
    if traits.window is not None:
        positions = lengths[:, None] + depths.view(rows, width)
        places = torch.where(of_tree, positions.gather(1, node), index)
        apart = positions[:, :, None] - places[:, None]
    return _by_kind(traits, seen, apart, dtype)


def on_cpu(traits: Traits, trees: Tree, lengths: np.ndarray, columns: int, dtype: torch.dtype):
    """Each query's position int64 (T,), and the masks of ``tree`` in one pass over them."""
    positions, masks = np.empty(len(trees), np.int64), {}
    for kind in traits.kinds:
        mask = np.empty((len(lengths), 1, trees.width, columns), np.float32)
        _fill(mask, *trees.host[1:], lengths, traits.window if kind == SLIDING else NO_WINDOW, LOW[dtype],
              positions)
        masks[kind] = torch.from_numpy(mask) if dtype == torch.float32 else torch.from_numpy(mask).to(dtype)
    return torch.from_numpy(positions), masks if len(masks) > 1 else masks[traits.kinds[0]]


@numba.njit(cache=True)
def _fill(mask, parents, depths, starts, lengths, window, low, positions):
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
                line[length + up - start] = 0
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
    mask = torch.full(seen.shape, LOW[dtype], dtype=dtype, device=seen.device)
    return mask.masked_fill_(seen, 0.0)[:, None]
