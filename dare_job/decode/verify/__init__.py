"""Verification: pure functions from scores (T, V) and a draft tree to the accepted path of each row."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify import rules
from dare_job.decode.verify.compiled import accept_strict
from dare_job.decode.verify.penalty import NO_PENALTY, PenaltyContext
from dare_job.decode.verify.relaxed_compiled import accept_relaxed, thresholds
from dare_job.decode.verify.result import ResultBuffers, VerificationResult, longest_accepted, verify_roots

_NO_NODES = np.zeros(0, np.bool_)


def verifier(settings: EngineSettings, eos: torch.Tensor) -> Callable[..., VerificationResult]:
    """Return the verification function of ``settings.rule``, with the arguments of ``verify`` below.

    Parameters
    ----------
    settings : EngineSettings
    eos : int64 (E,)
        End-of-text tokens, on the target's device.
    """
    relaxed = settings.rule != "strict"
    conditions, ends, buffers = thresholds(settings), eos.cpu().numpy(), ResultBuffers()
    rule = partial(rules.verify_relaxed, conditions=conditions, eos=eos) if relaxed else rules.verify_strict

    def verify(scores: torch.Tensor, tree: Tree, strict_nodes: torch.Tensor | None = None,
               penalty: PenaltyContext = NO_PENALTY) -> VerificationResult:
        """Verify the trees of one forward pass.

        Parameters
        ----------
        scores : float32 (T, V)
            On the same device as the tree.
        tree : Tree
        strict_nodes : bool (T,), optional
            Nodes that are accepted only if they are the argmax, whatever the rule. None: no node.
        penalty : PenaltyContext
            Repetition penalty that ``scores`` do not include yet. CPU only.
        """
        if scores.device.type == "cpu":
            scores, arrays = scores.contiguous(), buffers(tree)
            address, vocabulary = scores.data_ptr(), scores.shape[1]
            if relaxed and tree.depth:
                strict = _NO_NODES if strict_nodes is None else strict_nodes.numpy()
                all_finite = accept_relaxed(address, vocabulary, *tree.host, strict, ends, conditions,
                                            penalty, *arrays)
            else:  # without drafts, all rules accept the argmax
                tokens, parents, _, starts = tree.host
                all_finite = accept_strict(address, vocabulary, tokens, parents, starts, penalty, *arrays)
            return VerificationResult(*arrays, all_finite)
        if not tree.depth:
            return verify_roots(scores)
        return longest_accepted(tree, rule(scores, tree, strict_nodes))

    return verify
