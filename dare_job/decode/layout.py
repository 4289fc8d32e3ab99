"""Uneven rows: the model's layers read their queries one behind the other, attention side by side.

What a model does with one token at a time needs no padding. Attention does: there each row has its own keys,
and rows with fewer queries than the widest one repeat their root.
"""

import torch

from dare_job.decode.tree import Tree


class Layout:
    """T queries of R rows as R times W places. Read only.

    queries  int64 (R * W,)  the query in each place
    places   int64 (T,)      the place of each query
    even     query t stands in place t
    fold     query heads that share keys become queries of one head, so that no kernel has to know of groups
    """

    def __init__(self, rows: int, width: int, queries: torch.Tensor, places: torch.Tensor,
                 even: bool = False, fold: bool = False):
        self.rows, self.width, self.queries, self.places = rows, width, queries, places
        self.even, self.fold = even, fold
        self._repeated: dict = {}

    @classmethod
    def of(cls, tree: Tree) -> "Layout":
        queries, places = map(torch.from_numpy, tree.side)
        if (device := tree.tokens.device).type != "cpu":
            queries, places = queries.to(device), places.to(device)
        return cls(len(tree.starts) - 1, tree.width, queries, places)

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
