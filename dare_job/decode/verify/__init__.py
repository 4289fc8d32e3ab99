"""Verification: scores (T, V) and a tree in, the branch of each row out. Pure functions of tensors."""

from collections.abc import Callable
from functools import partial

import torch

from dare_job.decode.request import EngineSettings
from dare_job.decode.tree import Tree
from dare_job.decode.verify import relaxed, strict
from dare_job.decode.verify.verdict import Verdict, longest, strictly, undrafted

Verifier = Callable[..., Verdict]  # of scores, tree, and which nodes are strict whatever the rule


def verifier(settings: EngineSettings, eos: torch.Tensor) -> Verifier:
    """The verifier of the settings' rule; ``eos`` int64 (E,) on the target's device."""
    rule = strict.judge_tree if settings.rule == "strict" else partial(relaxed.judge_tree, settings=settings,
                                                                      eos=eos)

    def verify(scores: torch.Tensor, tree: Tree, strict_nodes: torch.Tensor | None = None) -> Verdict:
        """scores float32 (T, V) and the tree on one device; strict_nodes bool (T,): nodes that pass as first
        choices alone (None: none).
        """
        if scores.device.type == "cpu" and (settings.rule == "strict" or not tree.depth):
            return strictly(tree, scores)
        if not tree.depth:
            return undrafted(scores)
        return longest(tree, rule(scores, tree, strict_nodes))

    return verify
