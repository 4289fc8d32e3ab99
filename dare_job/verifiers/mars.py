"""MARS: the second-best token is accepted where the model hardly prefers its argmax."""

import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.plugin import VerifyContext
from dare_job.decode.verify.result import NodeVerification
from dare_job.errors import ConfigError
from dare_job.verifiers.nodes import Nodes


class Mars:
    """Accept the second-best token if its logit is above ``theta`` times the largest one.

        x is the argmax, or the second-best token, and z(2) / z(1) > theta, z(1) > 0

    with z(1) and z(2) the two largest logits. Song et al. 2026, "MARS: Unleashing the Power of Speculative
    Decoding via Margin-Aware Verification", arXiv 2601.15498; theta is 0.9 in its code (5SSjw/MARS,
    ``evaluate_posterior``), which relaxes sampling alone: here the rule is used at temperature 0. The ratio
    depends on the level of the logits, not on their differences alone, so a theta suits one model. Where no
    logit is positive the ratio has no meaning, and only the argmax passes.

    Parameters
    ----------
    eos : int64 (E,)
        Not used: the engine accepts an end of text only as the argmax.
    theta : float
        From 0 to below 1; the higher, the fewer tokens pass.

    Raises
    ------
    ConfigError
        ``theta`` is not in this range.
    """

    lossless = False

    def __init__(self, eos: torch.Tensor, theta: float = 0.9):
        if not 0 <= theta < 1:
            raise ConfigError(f"theta is {theta!r}; it must be from 0 to below 1")
        self._theta = theta

    def __call__(self, scores: torch.Tensor, tree: Tree, context: VerifyContext) -> NodeVerification:
        nodes = Nodes.of(scores, tree, context)
        is_close = ~nodes.is_top & (nodes.peak > 0) & (nodes.own > self._theta * nodes.peak)
        close = is_close.nonzero()[:, 0]  # few, so that few lines of scores are searched
        better = (scores[tree.parents[close]] > nodes.own[close, None]).sum(-1)
        passed = nodes.is_top.clone()
        passed[close] = better < 2
        return nodes.verified(passed, context)
