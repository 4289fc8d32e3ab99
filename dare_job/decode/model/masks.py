"""Additive attention masks over cache columns: rows of different lengths, draft trees, windows, chunks.

Every mask is (R, 1, Q, L) in the model's dtype, 0 where a query sees a column. Models that mix kinds of
layers take a dictionary with one mask for each kind. In a chunked layer a query at position p sees what it
would see in a window of p % chunk + 1.
"""

from typing import NamedTuple

import numba
import numpy as np
import torch

from dare_job.decode.model.support import CHUNKED, SLIDING, Traits
from dare_job.decode.model.tree import PaddedLayout, Tree

NO_WINDOW = 2**40

LOW = {dtype: torch.finfo(dtype).min for dtype in (torch.float32, torch.bfloat16, torch.float16)}


def prompt(traits: Traits, rows: int, start: int, longest: int, dtype: torch.dtype, device):
    """Return masks (R, 1, P - start, P) of right-padded prompts whose first ``start`` tokens are cached.

    No real token sees padding, which comes after it. All rows share the memory of one mask; the row dimension
    exists because some models require it.
    """
    index = torch.arange(longest, device=device)
    distances = index[start:, None] - index
    return _masks_by_kind(traits, (distances >= 0)[None], distances[None], index[None, start:], dtype, rows)


def tree(traits: Traits, layout: PaddedLayout | None, ancestors: torch.Tensor, depths: torch.Tensor,
         lengths: torch.Tensor, columns: int, dtype):
    """Return masks (R, 1, W, columns) of token trees that follow their rows' texts, on any device.

    Parameters
    ----------
    layout : PaddedLayout, optional
        Of rows of different sizes, whose padding sees what the root sees. None: every row has W queries.
    ancestors, depths : bool (T, W) and int64 (T,)
        As in ``Tree``.
    lengths : int64 (R,)
        Tokens before the root. Query j of the tree has column ``lengths + j``.
    """
    rows, width = len(lengths), ancestors.shape[1]
    if layout is not None:
        ancestors, depths = ancestors[layout.queries], depths[layout.queries]
    ancestors = ancestors.view(rows, width, width)
    index = torch.arange(columns, device=ancestors.device)
    offset = index - lengths[:, None]  # (R, columns): the tree starts at 0
    node = offset.clamp(0, width - 1)
    of_tree = (offset >= 0) & (offset < width)
    visible = ancestors.gather(2, node[:, None].expand(-1, width, -1)) & of_tree[:, None]
    visible |= (offset < 0)[:, None]
    distances = positions = None
    if traits.window is not None:
        positions = lengths[:, None] + depths.view(rows, width)
        places = torch.where(of_tree, positions.gather(1, node), index)
        distances = positions[:, :, None] - places[:, None]
    return _masks_by_kind(traits, visible, distances, positions, dtype)


def tree_on_cpu(traits: Traits, trees: Tree, lengths: np.ndarray, columns: int, dtype: torch.dtype):
    """Return each query's position int64 (T,) and the masks of ``tree``, in compiled code."""
    positions, masks = np.empty(len(trees), np.int64), {}
    for kind in traits.kinds:
        mask = np.empty((len(lengths), 1, trees.width, columns), np.float32)
        _fill_tree_mask(mask, *trees.host[1:], lengths, *window(traits, kind), LOW[dtype], positions)
        masks[kind] = torch.from_numpy(mask) if dtype == torch.float32 else torch.from_numpy(mask).to(dtype)
    return torch.from_numpy(positions), masks if len(masks) > 1 else masks[traits.kinds[0]]


def tree_anywhere(traits: Traits, trees: Tree, layout: PaddedLayout | None, lengths: np.ndarray,
                  longest: int, dtype: torch.dtype, causal: bool):
    """Return positions int64 (T,) and the masks of ``tree``; None if every row sees every column.

    ``longest``: tokens before the root of the longest row; ``causal``: whether attention needs no mask then.
    """
    device = trees.tokens.device
    if causal and trees.width == 1 and traits.window is None and lengths.min() == longest:
        return torch.from_numpy(lengths).to(device), None
    columns = longest + trees.width
    if device.type == "cpu":
        return tree_on_cpu(traits, trees, lengths, columns, dtype)
    before = torch.from_numpy(lengths).to(device)
    positions = trees.depths + (before if trees.width == 1 else before[trees.rows])
    return positions, tree(traits, layout, trees.ancestors, trees.depths, before, columns, dtype)


@numba.njit(cache=True)
def _fill_tree_mask(mask, parents, depths, starts, lengths, fixed, chunk, low, positions):
    rows, _, width, _ = mask.shape
    for r in range(rows):
        start, queries, length = starts[r], starts[r + 1] - starts[r], lengths[r]
        for i in range(width):
            t = start + i if i < queries else start  # padding sees what the root sees
            position = length + depths[t]
            positions[t] = position
            window = position % chunk + 1 if chunk else fixed
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


def window(traits: Traits, kind: str) -> tuple[int, int]:
    """Return the positions that a query of such layers sees, and those of a chunk; 0: no chunks."""
    return traits.window if kind == SLIDING else NO_WINDOW, traits.window if kind == CHUNKED else 0


def _masks_by_kind(traits: Traits, visible: torch.Tensor, distances: torch.Tensor | None,
                   positions: torch.Tensor | None, dtype, rows: int = -1):
    """Return masks of all kinds from visible columns (R, Q, L), distances of the same shape, and each query's
    position (R, Q).
    """
    masks = {}
    for kind in traits.kinds:
        in_window = visible
        if kind in (SLIDING, CHUNKED):
            window = traits.window if kind == SLIDING else positions[:, :, None] % traits.window + 1
            in_window = visible & (distances < window)
        masks[kind] = _additive(in_window, dtype).expand(rows, -1, -1, -1)
    return masks if len(masks) > 1 else masks[traits.kinds[0]]


def _additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.full(visible.shape, LOW[dtype], dtype=dtype, device=visible.device)
    return mask.masked_fill_(visible, 0.0)[:, None]


class Level(NamedTuple):
    """New nodes of R rows' trees, for models that read trees level by level.

    They see the nodes that earlier forward passes left in the cache, so nothing is read twice.

    Attributes
    ----------
    tokens : int64 (T,)
        Row after row.
    starts : int64 (R + 1,)
        Row r has the tokens from ``starts[r]`` to ``starts[r + 1]``; it may have none.
    lengths : int64 (R,)
        Tokens of each row's text, all cached.
    first : int64 (R,)
        Cached nodes after the text. Node i has column ``lengths + i``.
    parents : int64 (R, M)
        Parents of the cached and the new nodes: an earlier node, or -1 for the text's last token.
    depths : int64 (R, M)
        Depths of the same nodes; 1 directly after the text.
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    parents: np.ndarray
    depths: np.ndarray

    @property
    def before(self) -> np.ndarray:
        """int64 (R,): cache entries before a row's new ones; 0 for a row without new nodes."""
        return np.where(np.diff(self.starts) > 0, self.lengths + self.first, 0)

    def queries(self) -> Tree:
        """Return the new nodes as a ``Tree`` of separate queries, which is what cache and layers need."""
        counts = np.diff(self.starts)
        rows, width, index = len(counts), int(counts.max()), np.arange(len(self.tokens))
        places = np.repeat(np.arange(rows) * width - self.starts[:-1], counts) + index
        queries = np.zeros(rows * width, np.int64)  # padding: another row's query, whose output is unused
        queries[places] = index
        host = self.tokens, index, np.zeros(len(index), np.int64), self.starts
        return Tree(host, width, 0, np.ones(len(index), np.float32), (queries, places))


def level_of_trees(tree: Tree, before: np.ndarray, rows: np.ndarray | None = None) -> Level:
    """Return whole trees of some rows, bool (R,), as a level; None: of all.

    ``before`` int64 (R,): cached tokens before roots.
    """
    shape = len(before), tree.width
    tokens, parents, depths, starts = tree.host
    above = parents[tree.padding[0]].reshape(shape) - starts[:-1, None]
    above[:, 0] = -1
    if rows is not None:
        counts = np.diff(starts)
        tokens = tokens[np.repeat(rows, counts)]
        starts = np.concatenate(([0], np.cumsum(np.where(rows, counts, 0))))
    return Level(tokens, starts, before, np.zeros(len(before), np.int64), above,
                 depths[tree.padding[0]].reshape(shape) + 1)


def level_masks(traits: Traits, level: Level, width: int, columns: int, dtype: torch.dtype, device):
    """Return each node's position int64 (T,) and masks (R, 1, width, columns), computed on the CPU."""
    positions, masks = np.empty(len(level.tokens), np.int64), {}
    for kind in traits.kinds:
        mask = np.empty((len(level.lengths), 1, width, columns), np.float32)
        _fill_level_mask(mask, *level[1:], *window(traits, kind), LOW[dtype], positions)
        masks[kind] = torch.from_numpy(mask).to(device, dtype)
    return torch.from_numpy(positions).to(device), masks if len(masks) > 1 else masks[traits.kinds[0]]


@numba.njit(cache=True)
def _fill_level_mask(mask, starts, lengths, first, parents, depths, fixed, chunk, low, positions):
    rows, _, width, _ = mask.shape
    for r in range(rows):
        own, length = starts[r + 1] - starts[r], lengths[r]
        for i in range(width):
            line = mask[r, 0, i]
            if i >= own:  # padding: its output is unused
                line[:] = low
                line[0] = 0
                continue
            line[length:] = low
            node = first[r] + i
            position = length - 1 + depths[r, node]
            positions[starts[r] + i] = position
            window = position % chunk + 1 if chunk else fixed
            before = max(0, min(length, position - window + 1))
            line[:before] = low
            line[before:length] = 0
            up = node
            while up >= 0 and depths[r, node] - depths[r, up] < window:
                line[length + up] = 0
                up = parents[r, up]
