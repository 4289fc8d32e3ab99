"""Uneven rows: the model's layers read their queries one behind the other, attention side by side.

What a model does with one token at a time needs no padding. Attention does: there each row has its own keys,
and rows with fewer queries than the widest one repeat their root.
"""

from dataclasses import dataclass

import numba
import numpy as np
import torch

from dare_job.decode.tree import Tree


@dataclass(frozen=True)
class Layout:
    """T queries of R rows as R times W places.

    queries  int64 (R * W,)  the query in each place
    places   int64 (T,)      the place of each query
    """

    rows: int
    width: int
    queries: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, tree: Tree) -> "Layout":
        starts, width, device = tree.starts, tree.width, tree.tokens.device
        queries, places = _places(starts, width)
        return cls(len(starts) - 1, width, *(torch.from_numpy(x).to(device) for x in (queries, places)))

    def side_by_side(self, states: torch.Tensor) -> torch.Tensor:
        """(1, H, T, D) -> (R, H, W, D)."""
        _, heads, _, dim = states.shape
        spread = states[0].index_select(1, self.queries)
        return spread.view(heads, self.rows, self.width, dim).transpose(0, 1)

    def in_line(self, states: torch.Tensor) -> torch.Tensor:
        """(R, W, ...) -> (T, ...)."""
        return states.flatten(0, 1).index_select(0, self.places)


@numba.njit(cache=True)
def _places(starts, width):
    rows = len(starts) - 1
    queries, places = np.empty(rows * width, np.int64), np.empty(starts[rows], np.int64)
    for r in range(rows):
        for i in range(width):
            own = starts[r] + i < starts[r + 1]
            queries[r * width + i] = starts[r] + i if own else starts[r]
            if own:
                places[starts[r] + i] = r * width + i
    return queries, places
