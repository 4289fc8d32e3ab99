"""Additive attention masks over cache columns: ragged rows, draft trees, sliding windows.

Every mask is (R, 1, Q, L) in the model's dtype, 0 where a query sees a column. Models that mix full and
sliding layers take one for each kind, as a dictionary.
"""

import torch

from dare_job.decode.layout import Layout
from dare_job.decode.support import SLIDING, Traits
from dare_job.decode.tree import Tree


def prompt(traits: Traits, rows: int, longest: int, dtype: torch.dtype, device):
    """Masks (R, 1, P, P) of right-padded prompts: padding stands behind all that a real token sees.

    The rows share one mask's memory; there are as many as prompts because some models insist.
    """
    index = torch.arange(longest, device=device)
    apart = index[:, None] - index
    return _by_kind(traits, (apart >= 0)[None], apart[None], dtype, rows)


def tree(traits: Traits, tree: Tree, layout: Layout | None, lengths: torch.Tensor, longest: int, dtype):
    """Masks (R, 1, W, L) of token trees.

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


def _by_kind(traits: Traits, seen: torch.Tensor, apart: torch.Tensor | None, dtype, rows: int = -1):
    masks = {
        kind: _additive(seen & (apart < traits.window) if kind == SLIDING else seen, dtype)
        .expand(rows, -1, -1, -1) for kind in traits.kinds
    }
    return masks if len(masks) > 1 else masks[traits.kinds[0]]


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.full(seen.shape, torch.finfo(dtype).min, dtype=dtype, device=seen.device)
    return mask.masked_fill_(seen, 0.0)[:, None]
