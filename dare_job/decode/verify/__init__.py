"""Verification: scores (T, V) and a tree in, the branch of each row out. Pure functions of tensors."""

from collections.abc import Callable
from functools import partial

import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify import relaxed_compiled, rules
from dare_job.decode.verify.penalty import NO_PENALTY, PenaltyContext
from dare_job.decode.verify.result import (
    ResultBuffers,
    VerificationResult,
    longest_accepted,
    verify_roots,
    verify_strict_on_cpu,
)

Verifier = Callable[..., VerificationResult]  # of scores, tree, and which nodes are strict whatever the rule


def verifier(settings: EngineSettings, eos: torch.Tensor) -> Verifier:
    """The verifier of the settings' rule; ``eos`` int64 (E,) on the target's device."""
    by_rule = settings.rule != "strict"
    rule = partial(rules.verify_relaxed, settings=settings, eos=eos) if by_rule else rules.verify_strict
    bounds, ends, blank = relaxed_compiled.thresholds(settings), eos.cpu().numpy(), ResultBuffers()

    def verify(scores: torch.Tensor, tree: Tree, strict_nodes: torch.Tensor | None = None,
               seen: PenaltyContext = NO_PENALTY) -> VerificationResult:
        """scores float32 (T, V) and the tree on one device; strict_nodes bool (T,): nodes that pass as first
        choices alone (None: none); seen: of a penalty that the scores have not had yet, on a CPU.
        """
        if scores.device.type == "cpu":
            if by_rule and tree.depth:
                return rules.verify_on_cpu(scores, tree, strict_nodes, bounds, ends, seen, blank(tree))
            return verify_strict_on_cpu(tree, scores, seen, blank(tree))
        if not tree.depth:
            return verify_roots(scores)
        return longest_accepted(tree, rule(scores, tree, strict_nodes))

    return verify
