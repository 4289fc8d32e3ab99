"""Uneven rows: the model's layers read their queries one behind the other, attention side by side.

What a model does with one token at a time needs no padding. Attention does: there each row has its own keys,
and rows with fewer queries than the widest one repeat their root.
"""

from dataclasses import dataclass, field

import numba
import numpy as np
import torch

from dare_job.decode.tree import Tree


@dataclass(frozen=True)
class Layout:
    """T queries of R rows as R times W places.

    queries  int64 (R * W,)  the query in each place
    places   int64 (T,)      the place of each query
    even     query t stands in place t
    fold     query heads that share keys become queries of one head, so that no kernel has to know of groups
    """

    rows: int
    width: int
    queries: torch.Tensor
    places: torch.Tensor
    even: bool = False
    fold: bool = False
    _repeated: dict = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, tree: Tree) -> "Layout":
        starts, width, device = tree.starts, tree.width, tree.tokens.device
        queries, places = _places(starts, width)
        return cls(len(starts) - 1, width, *(torch.from_numpy(x).to(device) for x in (queries, places)))

    def side_by_side(self, states: torch.Tensor) -> torch.Tensor:
        """(1, H, T, D) -> (R, H, W, D)."""
        _, heads, _, dim = states.shape
        spread = states[0] if self.even else states[0].index_select(1, self.queries)
        return spread.reshape(heads, self.rows, self.width, dim).transpose(0, 1)

    def in_line(self, states: torch.Tensor) -> torch.Tensor:
        """(R, W, ...) -> (T, ...)."""
        flat = states.flatten(0, 1)
        return flat if self.even else flat.index_select(0, self.places)

    def repeated(self, mask: torch.Tensor, times: int) -> torch.Tensor:
        """(R, 1, W, L) -> (R, 1, times * W, L), made once for all layers that bring the same mask."""
        known = self._repeated.get(id(mask))
        if known is None or known[0] is not mask:
            rows, _, queries, columns = mask.shape
            wide = mask[:, :, None].expand(-1, -1, times, -1, -1)
            known = self._repeated[id(mask)] = mask, wide.reshape(rows, 1, times * queries, columns)
        return known[1]


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
