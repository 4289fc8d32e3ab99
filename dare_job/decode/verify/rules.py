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

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify.penalty import PenaltyContext
from dare_job.decode.verify.relaxed_compiled import Thresholds, accept_relaxed
from dare_job.decode.verify.result import NodeVerification, VerificationResult, argmax_finite


@dataclass(frozen=True)
class Candidates:
    """N draft tokens and the P nodes that precede them.

    Attributes
    ----------
    is_top : Tensor, bool (N,)
        Whether the token is the argmax of its parent.
    own : Tensor, float32 (N,)
        Score of the token.
    logp : Tensor, float32 (N,)
        Log probability of the token.
    scores : Tensor, float32 (P, V)
        Scores of the nodes.
    sums : Tensor, float32 (P,)
        Log-sum-exp of ``scores``.
    parents : Tensor, int64 (N,)
        Node of each token.
    """

    is_top: torch.Tensor
    own: torch.Tensor
    logp: torch.Tensor
    scores: torch.Tensor
    sums: torch.Tensor
    parents: torch.Tensor


def top_k(drafts: Candidates, settings: EngineSettings) -> torch.Tensor:
    kth = drafts.scores.topk(min(settings.k, drafts.scores.shape[1]), -1).values[:, -1]
    return (drafts.own >= kth[drafts.parents]) & drafts.own.isfinite()


def literal(drafts: Candidates, settings: EngineSettings) -> torch.Tensor:
    return top_k(drafts, settings) & (drafts.logp.exp() > settings.p)


def relaxed(drafts: Candidates, settings: EngineSettings) -> torch.Tensor:
    return drafts.is_top | literal(drafts, settings)


def threshold(drafts: Candidates, settings: EngineSettings) -> torch.Tensor:
    return drafts.is_top | (drafts.logp.exp() > settings.p)


def ratio(drafts: Candidates, settings: EngineSettings) -> torch.Tensor:
    peaks = drafts.scores.amax(-1)[drafts.parents]
    return drafts.is_top | (drafts.own - peaks >= math.log(settings.c))


def entropy(drafts: Candidates, settings: EngineSettings) -> torch.Tensor:
    q = (drafts.scores - drafts.sums[:, None]).exp_()
    entropies = torch.special.entr(q, out=q).sum(-1)
    min_logp = (math.log(settings.delta) - entropies).clamp_max(math.log(settings.epsilon))
    return drafts.is_top | (drafts.logp > min_logp[drafts.parents])


RULES: dict[str, Callable[[Candidates, EngineSettings], torch.Tensor]] = {
    "relaxed": relaxed, "top_k": top_k, "threshold": threshold, "literal": literal, "ratio": ratio,
    "entropy": entropy}

_NO_NODES = np.zeros(0, np.bool_)


def verify_relaxed(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None, *,
                   settings: EngineSettings, eos: torch.Tensor) -> NodeVerification:
    """Verify each node by ``settings.rule``, on any device.

    Parameters
    ----------
    scores : Tensor, float32 (T, V)
    tree : Tree
    strict : Tensor, bool (T,), optional
        Nodes that are accepted only as the argmax. None: no node.
    settings : EngineSettings
    eos : Tensor, int64 (E,)
        End-of-text tokens.
    """
    argmax, finite = argmax_finite(scores)
    tokens, parents, width = tree.tokens, tree.parents, scores.shape[1]
    own, sums = scores[parents, tokens.clamp_max(width - 1)], scores.logsumexp(-1)
    is_top = tokens == argmax[parents]
    drafts = Candidates(is_top, own, own - sums[parents], scores, sums, parents)
    passed = RULES[settings.rule](drafts, settings)
    passed = passed & (is_top | ~torch.isin(tokens, eos))
    if strict is not None:
        passed = torch.where(strict, is_top, passed)
    return NodeVerification(argmax, passed & (tokens < width), finite, drafts.logp)


def verify_on_cpu(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None, thresholds: Thresholds,
                  eos: np.ndarray, penalty: PenaltyContext,
                  buffers: tuple[np.ndarray, ...]) -> VerificationResult:
    """Verify by a relaxed rule in compiled code and accept the longest path.

    Arguments as in ``verify_relaxed``; ``eos`` int64 (E,); ``buffers`` as from ``empty_result``.
    """
    scores = scores.contiguous()
    strict = _NO_NODES if strict is None else strict.numpy()
    return VerificationResult(*buffers, accept_relaxed(scores.data_ptr(), scores.shape[1], *tree.host, strict,
                                                       eos, thresholds, penalty, *buffers))


def verify_strict(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None) -> NodeVerification:
    """Verify each node by the strict rule, on any device; ``strict`` is ignored. ``scores`` (T, V)."""
    argmax, finite = argmax_finite(scores)
    return NodeVerification(argmax, tree.tokens == argmax[tree.parents], finite)


def verify_strict_argmax(tree: Tree, argmax: np.ndarray, finite: np.ndarray) -> NodeVerification:
    """Verify each node by the strict rule, from ``argmax`` int64 (T,) and ``finite`` bool (T,) of scores."""
    tokens, parents = tree.host[:2]
    return NodeVerification(*map(torch.from_numpy, (argmax, tokens == argmax[parents], finite)))
