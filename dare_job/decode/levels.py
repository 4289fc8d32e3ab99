"""Trees that a model reads level by level: the nodes of a level see those that earlier forwards left in the
cache, and nothing is read twice.
"""

from typing import NamedTuple

import numba
import numpy as np
import torch

from dare_job.decode.masks import LOW, NO_WINDOW
from dare_job.decode.support import SLIDING, Traits
from dare_job.decode.tree import Tree


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


def of_trees(tree: Tree, before: np.ndarray, rows: np.ndarray) -> Level:
    """Whole trees of some rows, bool (R,); before (R,): tokens that the cache holds, without their roots."""
    counts, shape = np.diff(tree.starts), (len(rows), tree.width)
    tokens, parents, depths, starts = tree.host
    above = parents[tree.side[0]].reshape(shape) - starts[:-1, None]
    above[:, 0] = -1
    return Level(tokens[np.repeat(rows, counts)], np.concatenate(([0], np.cumsum(np.where(rows, counts, 0)))),
                 before, np.zeros(len(rows), np.int64), above, depths[tree.side[0]].reshape(shape) + 1)


def mask_of(traits: Traits, level: Level, width: int, columns: int, dtype: torch.dtype, device):
    """Each node's position int64 (T,), and masks (R, 1, width, columns) as in ``masks``; made on the CPU."""
    positions, masks = np.empty(len(level.tokens), np.int64), {}
    for kind in traits.kinds:
        mask = np.empty((len(level.lengths), 1, width, columns), np.float32)
        _fill(mask, *level[1:], traits.window if kind == SLIDING else NO_WINDOW, LOW[dtype], positions)
        masks[kind] = torch.from_numpy(mask).to(device, dtype)
    return torch.from_numpy(positions).to(device), masks if len(masks) > 1 else masks[traits.kinds[0]]


@numba.njit(cache=True)
def _fill(mask, starts, lengths, first, parents, depths, window, low, positions):
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
