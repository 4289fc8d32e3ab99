"""Drafts by a smaller causal language model of the same tokens."""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.draft.draft_cache import CachedDraftModel
from dare_job.decode.draft.greedy_tree import GreedyTrees
from dare_job.decode.draft.sampled_tree import SampledTrees, TreeShape
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.sampling.distributions import NONE, check_count, sample_candidates
from dare_job.decode.sampling.distributions import distribution_for as law_of
from dare_job.decode.sampling.drafts import SampledDrafts
from dare_job.decode.sampling.random_streams import RowUniforms
from dare_job.decode.sampling.warp import Constraint, warp
from dare_job.decode.settings import Warp
from pools.tree import DraftBatch, empty_drafts


class ModelDrafter:
    """Trees by a draft model, one forward a level over all rows at once."""

    def __init__(self, target: Target, shape: TreeShape | str = "4x2x1x1", vocabulary: int | None = None):
        """target: the draft model; vocabulary: tokens that the target model knows, where the draft model's
        table of embeddings is padded to another length.
        """
        self.shape = TreeShape.parse(shape) if isinstance(shape, str) else shape
        self.vocabulary = vocabulary or target.vocabulary
        self.reader = CachedDraftModel(target)

    @torch.inference_mode()
    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, min_score: float = 0.0) -> DraftBatch:
        """What the draft model finds most probable, by the widths of the shape.

        A node's score is its path's probability. Where a row's budget is below the shape's nodes it gets the
        most probable of them.
        """
        nodes = min(self.shape.nodes, int(budgets.max(initial=0)))
        read = min(self.shape.nodes, nodes * (self.shape.depth - 1))  # better ones may take their places
        wanted = (budgets > 0) & (depths > 0) & self.reader.fits(lengths, read)
        if not nodes or not wanted.any():
            return empty_drafts(len(requests))
        rows, logits = self.reader.read(requests, context, lengths, wanted)
        grown, parents = GreedyTrees.empty(len(requests), nodes, read), np.full(len(rows), -1)
        deepest, budgets = np.minimum(depths, self.shape.depth), np.minimum(budgets, nodes)
        for depth, width in enumerate(self.shape.widths, 1):
            grown.add(rows, parents, *self._likeliest(logits, width), budgets, min_score)
            found = grown.next_level(lengths, depth, deepest, budgets)
            if found is None:
                break
            level, (rows, parents) = found
            logits = self.reader.extend(level)
        return grown.drafts()

    @torch.inference_mode()
    def sampled(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
                budgets: np.ndarray, depths: np.ndarray, law: str, settings: Warp, draws: RowUniforms,
                constrain: Constraint | None = None) -> SampledDrafts:
        """Candidates drawn by a law from what the draft model says after warping.

        The first six arguments as in ``Drafter.draft``. A node has as many candidates as the shape has on its
        level, or none: where a row's budget is below the shape's nodes, its likeliest nodes have some. draws:
        a row's numbers, of which those of node i are number i + 1 and the root's number 0. constrain: forbids
        tokens before warping.
        """
        chosen, widths = law_of(law), self.shape.widths
        for width in widths:
            check_count(chosen, width)
        nodes = min(self.shape.nodes, int(budgets.max(initial=0)))
        wanted = (budgets >= widths[0]) & (depths > 0) & self.reader.fits(lengths, nodes)
        drawn, parts, lines = SampledTrees.empty(len(requests), nodes, max(widths)), [], 0
        rows, logits = self.reader.read(requests, context, lengths, wanted)
        places, deepest = np.zeros(len(rows), np.int64), np.minimum(depths, self.shape.depth)
        for depth, width in enumerate(widths, 1):
            if not len(rows):
                break
            logits = over_vocabulary(logits, self.vocabulary)
            if constrain is not None:
                logits = constrain(logits, rows, lengths[rows] + depth - 1)
            rows, places, q = self._warped(logits, rows, places, drawn, context, lengths, settings)
            found = sample_candidates(
                chosen, q, width, torch.from_numpy(draws(rows, places, width)).to(q.device)
            )
            shares = q.gather(1, found.clamp_min(0)).cpu().numpy()
            drawn.add(rows, places, found.cpu().numpy(), shares, lines)
            parts.append(q)
            lines += len(q)
            if depth == len(widths):
                break
            following = drawn.next_level(lengths, depth, widths[depth], deepest, budgets)
            if following is None:
                break
            level, (rows, places) = following
            logits = self.reader.extend(level)
        q = torch.cat(parts) if parts else logits.new_empty((0, self.vocabulary))
        return SampledDrafts(drawn.drafts(), (law,) * len(requests), drawn.columns[:, : drawn.used + 1],
                             drawn.asked[:, : drawn.used + 1], drawn.lines[:, : drawn.used + 1], q)

    def _warped(self, logits: torch.Tensor, rows: np.ndarray, nodes: np.ndarray, drawn: SampledTrees,
                context: np.ndarray, lengths: np.ndarray, settings: Warp) -> tuple:
        """Rows, nodes and q of those whose logits (T, V) are numbers."""
        seen = None
        if settings.repetition_penalty != 1:
            longest = int(lengths[rows].max())
            text = np.where(np.arange(longest) < lengths[rows, None], context[rows, :longest], NONE)
            path = drawn.paths(rows, nodes, self.shape.depth)
            seen = torch.from_numpy(np.concatenate((text, path), 1, dtype=np.int64)).to(logits.device)
        q, sound = warp(logits, settings, seen)
        if sound.all():
            return rows, nodes, q
        kept = sound.cpu().numpy()
        return rows[kept], nodes[kept], q[sound]

    def _likeliest(self, logits: torch.Tensor, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int64 (T, K) and their probabilities of logits (T, V), no numbers where these are none."""
        found = torch.softmax(logits[:, : self.vocabulary], -1).topk(min(width, self.vocabulary))
        return found.indices.cpu().numpy(), found.values.cpu().numpy()


def over_vocabulary(logits: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """A draft model's logits (T, W) as (T, V) of the target's tokens: tables are padded to other lengths."""
    lacking = vocabulary - logits.shape[1]
    if lacking > 0:
        return torch.nn.functional.pad(logits, (0, lacking), value=-torch.inf)
    return logits[:, :vocabulary]
