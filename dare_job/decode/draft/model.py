"""Draft trees from a smaller causal language model with the target model's tokenizer."""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.draft.draft_cache import CachedDraftModel
from dare_job.decode.draft.greedy_tree import GreedyTrees
from dare_job.decode.draft.sampled_tree import SampledTrees, TreeShape
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.sampling.distributions import NONE, check_count, distribution_for, sample_candidates
from dare_job.decode.sampling.drafts import SampledDrafts
from dare_job.decode.sampling.random_streams import RowUniforms
from dare_job.decode.sampling.warp import Constraint, warp
from dare_job.decode.settings import Warp
from pools.tree import DraftBatch, empty_drafts


class ModelDrafter:
    """Drafts trees with a draft model, one forward pass per level for all rows.

    Parameters
    ----------
    target
        The draft model.
    shape
        Shape of the trees, or its text form.
    vocabulary
        Number of tokens of the target model; None: as the draft model. Embedding tables may be padded to
        different lengths.
    """

    def __init__(self, target: Target, shape: TreeShape | str = "4x2x1x1", vocabulary: int | None = None):
        self.shape = TreeShape.parse(shape) if isinstance(shape, str) else shape
        self.vocabulary = vocabulary or target.vocabulary
        self.model = CachedDraftModel(target)

    @torch.inference_mode()
    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, min_score: float = 0.0) -> DraftBatch:
        """Draft the most probable tokens within the shape, as in ``Drafter.draft``.

        The score of a node is the probability of its path. A row with a budget below the nodes of the shape
        gets the most probable of them.
        """
        nodes = min(self.shape.nodes, int(budgets.max(initial=0)))
        max_read = min(self.shape.nodes, nodes * (self.shape.depth - 1))  # better nodes may replace read ones
        wanted = (budgets > 0) & (depths > 0) & self.model.fits(lengths, max_read)
        if not nodes or not wanted.any():
            return empty_drafts(len(requests))
        rows, logits = self.model.read(requests, context, lengths, wanted)
        trees, parents = GreedyTrees.empty(len(requests), nodes, max_read), np.full(len(rows), -1)
        max_depths, budgets = np.minimum(depths, self.shape.depth), np.minimum(budgets, nodes)
        for depth, width in enumerate(self.shape.widths, 1):
            trees.add(rows, parents, *self._top_k(logits, width), budgets, min_score)
            selected = trees.next_level(lengths, depth, max_depths, budgets)
            if selected is None:
                break
            level, (rows, parents) = selected
            logits = self.model.extend(level)
        return trees.drafts()

    @torch.inference_mode()
    def sampled(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
                budgets: np.ndarray, depths: np.ndarray, distribution: str, settings: Warp,
                uniforms: RowUniforms, constrain: Constraint | None = None) -> SampledDrafts:
        """Sample candidates from the warped distribution of the draft model.

        A node has as many candidates as the shape has on its level, or none: if a row's budget is below the
        nodes of the shape, its most probable nodes have candidates.

        Parameters
        ----------
        requests, context, lengths, budgets, depths
            As in ``Drafter.draft``.
        distribution
            Name of the draft distribution.
        settings
            Temperature and other warpers.
        uniforms
            Uniforms of each row; the root uses index 0, node i uses index i + 1.
        constrain
            Masks the tokens that must not follow, before warping.
        """
        rule, widths = distribution_for(distribution), self.shape.widths
        for width in widths:
            check_count(rule, width)
        size = min(self.shape.nodes, int(budgets.max(initial=0)))
        wanted = (budgets >= widths[0]) & (depths > 0) & self.model.fits(lengths, size)
        trees, parts, q_rows = SampledTrees.empty(len(requests), size, max(widths)), [], 0
        rows, logits = self.model.read(requests, context, lengths, wanted)
        nodes, max_depths = np.zeros(len(rows), np.int64), np.minimum(depths, self.shape.depth)
        for depth, width in enumerate(widths, 1):
            if not len(rows):
                break
            logits = over_vocabulary(logits, self.vocabulary)
            if constrain is not None:
                logits = constrain(logits, rows, lengths[rows] + depth - 1)
            rows, nodes, q = self._warp(logits, rows, nodes, trees, context, lengths, settings)
            tokens = sample_candidates(
                rule, q, width, torch.from_numpy(uniforms(rows, nodes, width)).to(q.device))
            probabilities = q.gather(1, tokens.clamp_min(0)).cpu().numpy()
            trees.add(rows, nodes, tokens.cpu().numpy(), probabilities, q_rows)
            parts.append(q)
            q_rows += len(q)
            if depth == len(widths):
                break
            selected = trees.next_level(lengths, depth, widths[depth], max_depths, budgets)
            if selected is None:
                break
            level, (rows, nodes) = selected
            logits = self.model.extend(level)
        q = torch.cat(parts) if parts else logits.new_empty((0, self.vocabulary))
        columns = trees.max_size + 1
        return SampledDrafts(trees.drafts(), distribution, trees.columns[:, :columns],
                             trees.requested[:, :columns], trees.q_rows[:, :columns], q)

    def _warp(self, logits: torch.Tensor, rows: np.ndarray, nodes: np.ndarray, trees: SampledTrees,
              context: np.ndarray, lengths: np.ndarray, settings: Warp) -> tuple:
        """Rows, nodes and warped probabilities q of the logits (T, V) that are finite."""
        history = None
        if settings.repetition_penalty != 1:
            longest = int(lengths[rows].max())
            text = np.where(np.arange(longest) < lengths[rows, None], context[rows, :longest], NONE)
            path = trees.paths(rows, nodes, self.shape.depth)
            history = torch.from_numpy(np.concatenate((text, path), 1, dtype=np.int64)).to(logits.device)
        q, finite = warp(logits, settings, history)
        if finite.all():
            return rows, nodes, q
        kept = finite.cpu().numpy()
        return rows[kept], nodes[kept], q[finite]

    def _top_k(self, logits: torch.Tensor, width: int) -> tuple[np.ndarray, np.ndarray]:
        """The K most probable tokens int64 (T, K) of logits (T, V) and their probabilities, NaN if
        non-finite.
        """
        top = torch.softmax(logits[:, : self.vocabulary], -1).topk(min(width, self.vocabulary))
        return top.indices.cpu().numpy(), top.values.cpu().numpy()


def over_vocabulary(logits: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Truncate or pad a draft model's logits (T, W) to the target's vocabulary, (T, V): tables may be padded.
    """
    missing = vocabulary - logits.shape[1]
    if missing > 0:
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
    return logits[:, :vocabulary]
