"""Additive attention masks over cache columns: ragged rows, draft trees, sliding windows.

Every mask is (R, 1, Q, L) in the model's dtype, 0 where a query sees a column. Models that mix full and
sliding layers take one for each kind, as a dictionary.

Trees that a model reads level by level: the nodes of a level see those that earlier forwards left in the
cache, and nothing is read twice.
"""

from typing import NamedTuple

import numba
import numpy as np
import torch

from dare_job.decode.model.support import SLIDING, Traits
from dare_job.decode.model.tree import PaddedLayout, Tree

NO_WINDOW = 2**40

LOW = {dtype: torch.finfo(dtype).min for dtype in (torch.float32, torch.bfloat16, torch.float16)}


def prompt(traits: Traits, rows: int, start: int, longest: int, dtype: torch.dtype, device):
    """Masks (R, 1, P - start, P) of right-padded prompts whose first ``start`` tokens were read before.

    Padding stands behind all that a real token sees. The rows share one mask's memory; there are as many as
    prompts because some models insist.
    """
    index = torch.arange(longest, device=device)
    apart = index[start:, None] - index
    return _masks_by_kind(traits, (apart >= 0)[None], apart[None], dtype, rows)


def tree(traits: Traits, layout: PaddedLayout | None, ancestors: torch.Tensor, depths: torch.Tensor,
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
    return _masks_by_kind(traits, seen, apart, dtype)


def tree_on_cpu(traits: Traits, trees: Tree, lengths: np.ndarray, columns: int, dtype: torch.dtype):
    """Each query's position int64 (T,), and the masks of ``tree`` in one pass over them."""
    positions, masks = np.empty(len(trees), np.int64), {}
    for kind in traits.kinds:
        mask = np.empty((len(lengths), 1, trees.width, columns), np.float32)
        window = traits.window if kind == SLIDING else NO_WINDOW
        _fill_tree_mask(mask, *trees.host[1:], lengths, window, LOW[dtype], positions)
        masks[kind] = torch.from_numpy(mask) if dtype == torch.float32 else torch.from_numpy(mask).to(dtype)
    return torch.from_numpy(positions), masks if len(masks) > 1 else masks[traits.kinds[0]]


@numba.njit(cache=True)
def _fill_tree_mask(mask, parents, depths, starts, lengths, window, low, positions):
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


def _masks_by_kind(traits: Traits, seen: torch.Tensor, apart: torch.Tensor | None, dtype, rows: int = -1):
    masks = {
        kind: _additive(seen & (apart < traits.window) if kind == SLIDING else seen, dtype)
        .expand(rows, -1, -1, -1) for kind in traits.kinds
    }
    return masks if len(masks) > 1 else masks[traits.kinds[0]]


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.full(seen.shape, LOW[dtype], dtype=dtype, device=seen.device)
    return mask.masked_fill_(seen, 0.0)[:, None]


class Level(NamedTuple):
    """Nodes that one forward reads behind what the cache holds of R rows.

    tokens   int64 (T,): row after row
    starts   int64 (R + 1,): row r's are those from starts[r] up to starts[r + 1]; it may have none
    lengths  int64 (R,): tokens of each row's text, which the cache holds
    first    int64 (R,): nodes behind the text that it holds, too: node i stands in column lengths + i
    parents  int64 (R, M): of those nodes and of the new ones behind them: a node before it, or -1, the text's
             last token
    depths   int64 (R, M): of both, 1 directly behind the text
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    parents: np.ndarray
    depths: np.ndarray

    @property
    def before(self) -> np.ndarray:
        """int64 (R,): entries before a row's new ones; 0 where it has none, so that it needs no columns."""
        return np.where(np.diff(self.starts) > 0, self.lengths + self.first, 0)

    def queries(self) -> Tree:
        """What cache and layers have to know of them: a token each, and its row."""
        counts = np.diff(self.starts)
        rows, width, each = len(counts), int(counts.max()), np.arange(len(self.tokens))
        places = np.repeat(np.arange(rows) * width - self.starts[:-1], counts) + each
        queries = np.zeros(rows * width, np.int64)  # a row with fewer has another's there: nobody reads it
        queries[places] = each
        host = self.tokens, each, np.zeros(len(each), np.int64), self.starts
        return Tree(host, width, 0, np.ones(len(each), np.float32), (queries, places))


def level_of_trees(tree: Tree, before: np.ndarray, rows: np.ndarray) -> Level:
    """Whole trees of some rows, bool (R,); before (R,): tokens that the cache holds, without their roots."""
    counts, shape = np.diff(tree.starts), (len(rows), tree.width)
    tokens, parents, depths, starts = tree.host
    above = parents[tree.padding[0]].reshape(shape) - starts[:-1, None]
    above[:, 0] = -1
    return Level(tokens[np.repeat(rows, counts)], np.concatenate(([0], np.cumsum(np.where(rows, counts, 0)))),
                 before, np.zeros(len(rows), np.int64), above, depths[tree.padding[0]].reshape(shape) + 1)


def level(traits: Traits, level: Level, width: int, columns: int, dtype: torch.dtype, device):
    """Each node's position int64 (T,), and masks (R, 1, width, columns) as in ``masks``; made on the CPU."""
    positions, masks = np.empty(len(level.tokens), np.int64), {}
    for kind in traits.kinds:
        mask = np.empty((len(level.lengths), 1, width, columns), np.float32)
        window = traits.window if kind == SLIDING else NO_WINDOW
        _fill_level_mask(mask, *level[1:], window, LOW[dtype], positions)
        masks[kind] = torch.from_numpy(mask).to(device, dtype)
    return torch.from_numpy(positions).to(device), masks if len(masks) > 1 else masks[traits.kinds[0]]


@numba.njit(cache=True)
def _fill_level_mask(mask, starts, lengths, first, parents, depths, window, low, positions):
    rows, _, width, _ = mask.shape
    for r in range(rows):
        own, length = starts[r + 1] - starts[r], lengths[r]
        for i in range(width):
            line = mask[r, 0, i]
            if i >= own:  # padding: nobody reads what it says
                line[:] = low
                line[0] = 0
                continue
            line[length:] = low
            node = first[r] + i
            position = length - 1 + depths[r, node]
            positions[starts[r] + i] = position
            before = max(0, min(length, position - window + 1))
            line[:before] = low
            line[before:length] = 0
            up = node
            while up >= 0 and depths[r, node] - depths[r, up] < window:
                line[length + up] = 0
                up = parents[r, up]
