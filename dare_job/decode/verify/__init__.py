"""Verification: pure functions from scores (T, V) and a draft tree to the accepted path of each row."""

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

Verifier = Callable[..., VerificationResult]  # arguments as in ``verify`` below


def verifier(settings: EngineSettings, eos: torch.Tensor) -> Verifier:
    """Return the verification function of ``settings.rule``.

    Parameters
    ----------
    settings : EngineSettings
    eos : Tensor, int64 (E,)
        End-of-text tokens, on the target's device.
    """
    relaxed = settings.rule != "strict"
    rule = partial(rules.verify_relaxed, settings=settings, eos=eos) if relaxed else rules.verify_strict
    thresholds, ends, buffers = relaxed_compiled.thresholds(settings), eos.cpu().numpy(), ResultBuffers()

    def verify(scores: torch.Tensor, tree: Tree, strict_nodes: torch.Tensor | None = None,
               penalty: PenaltyContext = NO_PENALTY) -> VerificationResult:
        """Verify the trees of one forward pass.

        Parameters
        ----------
        scores : Tensor, float32 (T, V)
            On the same device as the tree.
        tree : Tree
        strict_nodes : Tensor, bool (T,), optional
            Nodes that are accepted only if they are the argmax, whatever the rule. None: no node.
        penalty : PenaltyContext
            Repetition penalty that ``scores`` do not include yet. CPU only.
        """
        if scores.device.type == "cpu":
            if relaxed and tree.depth:
                return rules.verify_on_cpu(scores, tree, strict_nodes, thresholds, ends, penalty,
                                           buffers(tree))
            return verify_strict_on_cpu(tree, scores, penalty, buffers(tree))
        if not tree.depth:
            return verify_roots(scores)
        return longest_accepted(tree, rule(scores, tree, strict_nodes))

    return verify
