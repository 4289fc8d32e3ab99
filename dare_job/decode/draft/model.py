"""Drafts by a smaller causal language model of the same tokens."""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.draft.growing import Grown
from dare_job.decode.draft.reader import Reader
from dare_job.decode.draft.shape import Shape
from dare_job.decode.request import Request
from dare_job.decode.target import Target
from pools.tree import DraftBatch, empty


class ModelDrafter:
    """Trees of what a draft model finds most probable, one forward a level over all rows at once.

    A node's score is its path's probability under the draft model. Where a row's budget is below the shape's
    nodes it gets the most probable of them.
    """

    def __init__(self, target: Target, shape: Shape | str = "4x2x1x1", vocabulary: int | None = None):
        """target: the draft model; vocabulary: tokens that the target model knows, where the draft model's
        table of embeddings is padded to another length.
        """
        self.shape = Shape.parse(shape) if isinstance(shape, str) else shape
        self.vocabulary = vocabulary or target.vocabulary
        self.reader = Reader(target)

    @torch.inference_mode()
    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, least: float = 0.0) -> DraftBatch:
        nodes = min(self.shape.nodes, int(budgets.max(initial=0)))
        read = min(self.shape.nodes, nodes * (self.shape.depth - 1))  # better ones may take their places
        wanted = (budgets > 0) & (depths > 0) & self.reader.fits(lengths, read)
        if not nodes or not wanted.any():
            return empty(len(requests))
        rows, scores = self.reader.read(requests, context, lengths, wanted)
        grown, parents = Grown.empty(len(requests), nodes, read), np.full(len(rows), -1)
        deepest, budgets = np.minimum(depths, self.shape.depth), np.minimum(budgets, nodes)
        for depth, width in enumerate(self.shape.widths, 1):
            grown.add(rows, parents, *self._children(scores, width), budgets, least)
            found = grown.next_level(lengths, depth, deepest, budgets)
            if found is None:
                break
            level, (rows, parents) = found
            scores = self.reader.target.extend(self.reader.cache, level).float()
        return grown.drafts()

    def _children(self, scores: torch.Tensor, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int64 (T, K) and their probabilities of scores (T, V), no numbers where these are none."""
        scores = scores[:, : self.vocabulary]
        found = torch.softmax(scores, -1).topk(min(width, scores.shape[1]))
        return found.indices.cpu().numpy(), found.values.cpu().numpy()
