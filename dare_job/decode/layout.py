"""Uneven rows: the model's layers read their queries one behind the other, attention side by side.

What a model does with one token at a time needs no padding. Attention does: there each row has its own keys,
and rows with fewer queries than the widest one repeat their root.
"""

from dataclasses import dataclass

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
        device, width = tree.tokens.device, tree.width
        starts = torch.from_numpy(tree.starts).to(device)
        count = starts.diff()
        offsets = torch.arange(width, device=device)
        queries = starts[:-1, None] + torch.where(offsets < count[:, None], offsets, 0)
        numbers = torch.arange(len(tree.tokens), device=device)
        places = numbers - starts[tree.rows] + tree.rows * width
        return cls(len(count), width, queries.flatten(), places)

    def side_by_side(self, states: torch.Tensor) -> torch.Tensor:
        """(1, H, T, D) -> (R, H, W, D)."""
        _, heads, _, dim = states.shape
        spread = states[0].index_select(1, self.queries)
        return spread.view(heads, self.rows, self.width, dim).transpose(0, 1)

    def in_line(self, states: torch.Tensor) -> torch.Tensor:
        """(R, W, ...) -> (T, ...)."""
        return states.flatten(0, 1).index_select(0, self.places)
