"""Verification rules: may a draft token x be accepted after a node with target distribution q?

    strict     x is the argmax of q
    relaxed    x is the argmax, or x in TopK(q, k) and q(x) > p
    top_k      x in TopK(q, k)
    threshold  x is the argmax, or q(x) > p
    literal    x in TopK(q, k) and q(x) > p, also for the argmax: equation 8 as printed
    ratio      x is the argmax, or q(x) >= c max(q)
    entropy    x is the argmax, or q(x) > min(epsilon, delta exp(-H(q))), with H the entropy in nats

strict gives the text of greedy decoding. relaxed, top_k, threshold and literal are from DARE (equations 4, 7
and 8, table 8). entropy is the typical acceptance of Medusa (Cai et al. 2024, arXiv 2401.10774;
``evaluate_posterior`` in its code, with epsilon 0.09 and delta sqrt(0.09)). x is in TopK if fewer than k
tokens are more probable.

Whatever the relaxed rule, an end-of-text token is accepted only as the argmax, and a token with an embedding
but no logit (the embedding may be larger than the output head) is not accepted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify.relaxed_compiled import Thresholds, thresholds
from dare_job.decode.verify.result import NodeVerification, argmax_finite


@dataclass(frozen=True)
class DraftTokens:
    """N draft tokens and the P nodes that precede them.

    Attributes
    ----------
    is_top : bool (N,)
        Whether the token is the argmax of its parent.
    own : float32 (N,)
        Score of the token.
    logp : float32 (N,)
        Log probability of the token.
    scores : float32 (P, V)
        Scores of the nodes.
    sums : float32 (P,)
        Log-sum-exp of ``scores``.
    parents : int64 (N,)
        Node of each token.
    """

    is_top: torch.Tensor
    own: torch.Tensor
    logp: torch.Tensor
    scores: torch.Tensor
    sums: torch.Tensor
    parents: torch.Tensor


def meets(drafts: DraftTokens, conditions: Thresholds) -> torch.Tensor:
    """Return which tokens meet the conditions of a rule, bool (N,)."""
    if conditions.gap < math.inf:
        passed = drafts.scores.amax(-1)[drafts.parents] - drafts.own <= conditions.gap
    elif not math.isnan(conditions.epsilon):
        q = (drafts.scores - drafts.sums[:, None]).exp_()
        entropies = torch.special.entr(q, out=q).sum(-1)
        min_logp = (conditions.delta - entropies).clamp_max(conditions.epsilon)
        passed = drafts.logp > min_logp[drafts.parents]
    else:
        passed = drafts.own.isfinite() & (drafts.logp > conditions.logp)
        if conditions.k:
            kth = drafts.scores.topk(min(conditions.k, drafts.scores.shape[1]), -1).values[:, -1]
            passed &= drafts.own >= kth[drafts.parents]
    return drafts.is_top | passed if conditions.accept_argmax else passed


def verify_relaxed(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None, *,
                   conditions: Thresholds, eos: torch.Tensor) -> NodeVerification:
    """Verify each node by a relaxed rule, on any device.

    Parameters
    ----------
    scores : float32 (T, V)
    tree : Tree
    strict : bool (T,), optional
        Nodes that are accepted only as the argmax. None: no node.
    conditions : Thresholds
        Of the rule.
    eos : int64 (E,)
        End-of-text tokens.
    """
    argmax, finite = argmax_finite(scores)
    tokens, parents, width = tree.tokens, tree.parents, scores.shape[1]
    own, sums = scores[parents, tokens.clamp_max(width - 1)], scores.logsumexp(-1)
    is_top = tokens == argmax[parents]
    drafts = DraftTokens(is_top, own, own - sums[parents], scores, sums, parents)
    passed = meets(drafts, conditions) & (is_top | ~(tokens[:, None] == eos).any(-1))
    if strict is not None:
        passed = torch.where(strict, is_top, passed)
    return NodeVerification(argmax, passed & (tokens < width), finite, drafts.logp)


@lru_cache(maxsize=64)  # engines with the same settings share graphs that hold the function
def packed(settings: EngineSettings, eos: tuple[int, ...],
           device: torch.device) -> Callable[[torch.Tensor, Any], torch.Tensor]:
    """Return ``verify_relaxed`` of ``settings.rule`` as one tensor, for a forward pass that applies the rule.

    Parameters
    ----------
    settings : EngineSettings
    eos : tuple of int
        End-of-text tokens.
    device : torch.device

    Returns
    -------
    callable
        From logits (T, V), and queries with ``tokens``, ``parents`` and ``strict`` (T,), to int32 (4, T): the
        fields of ``NodeVerification``, the bits of ``logp`` among them.
    """
    conditions, ends = thresholds(settings), torch.tensor(eos, dtype=torch.long, device=device)

    def rule(logits: torch.Tensor, queries: Any) -> torch.Tensor:
        nodes = verify_relaxed(logits.float(), queries, queries.strict, conditions=conditions, eos=ends)
        return torch.stack((nodes.argmax.int(), nodes.passed.int(), nodes.finite.int(),
                            nodes.logp.float().view(torch.int32)))

    return rule


def unpacked(values: np.ndarray) -> NodeVerification:
    """Return what ``packed`` gave, int32 (4, T)."""
    argmax, passed, finite, logp = values
    return NodeVerification(torch.from_numpy(argmax.astype(np.int64)), torch.from_numpy(passed != 0),
                            torch.from_numpy(finite != 0), torch.from_numpy(logp.copy().view(np.float32)))


def verify_strict(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None) -> NodeVerification:
    """Verify each node by the strict rule, on any device; ``strict`` is ignored. ``scores`` (T, V)."""
    argmax, finite = argmax_finite(scores)
    return NodeVerification(argmax, tree.tokens == argmax[tree.parents], finite)


def verify_strict_argmax(tree: Tree, argmax: np.ndarray, finite: np.ndarray) -> NodeVerification:
    """Verify each node by the strict rule, from ``argmax`` (T,) and ``finite`` (T,) of scores, integers."""
    tokens, parents = tree.host[:2]
    argmax = argmax.astype(np.int64)
    return NodeVerification(*map(torch.from_numpy, (argmax, tokens == argmax[parents], finite != 0)))
