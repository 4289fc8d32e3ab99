"""The relaxed rules: may a draft token x pass behind a node with distribution q?

    relaxed    x is the first choice, or x in TopK(q, k) and q(x) > p
    top_k      x in TopK(q, k)
    threshold  x is the first choice, or q(x) > p
    literal    x in TopK(q, k) and q(x) > p, the first choice too: equation 8 as it is printed
    ratio      x is the first choice, or q(x) >= c max(q)
    entropy    x is the first choice, or q(x) > min(epsilon, delta exp(-H(q))), H the entropy in nats

The first four are DARE's (equations 4, 7 and 8, table 8). The last one is the typical acceptance of Medusa
(Cai et al. 2024, arXiv 2401.10774; in its code ``evaluate_posterior``, with 0.09 and its root 0.3). x is in
TopK when fewer than k tokens are more probable. Pure functions of tensors with one entry a token, whatever
the shape of the trees.

Relaxed verification: a draft token passes where one of the ``rules`` lets it.

An end-of-text token passes only as the first choice. A token that has an embedding but no score (the
embedding may be the wider) does not pass.

Strict verification: a draft token passes when it is the model's first choice.

The accepted branch is what greedy decoding would have written, and the token behind it too. On a CPU the
whole verdict comes from ``compiled.branch``.
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
    """N draft tokens and the P nodes behind which they stand.

    first   bool (N,)       the token is the node's first choice
    own     float32 (N,)    its score
    logp    float32 (N,)    the token's log probability
    scores  float32 (P, V)  of the nodes
    sums    float32 (P,)    their logsumexp
    place   int64 (N,)      each token's node
    """

    first: torch.Tensor
    own: torch.Tensor
    logp: torch.Tensor
    scores: torch.Tensor
    sums: torch.Tensor
    place: torch.Tensor


def top_k(asked: Candidates, settings: EngineSettings) -> torch.Tensor:
    least = asked.scores.topk(min(settings.k, asked.scores.shape[1]), -1).values[:, -1]
    return (asked.own >= least[asked.place]) & asked.own.isfinite()


def literal(asked: Candidates, settings: EngineSettings) -> torch.Tensor:
    return top_k(asked, settings) & (asked.logp.exp() > settings.p)


def relaxed(asked: Candidates, settings: EngineSettings) -> torch.Tensor:
    return asked.first | literal(asked, settings)


def threshold(asked: Candidates, settings: EngineSettings) -> torch.Tensor:
    return asked.first | (asked.logp.exp() > settings.p)


def ratio(asked: Candidates, settings: EngineSettings) -> torch.Tensor:
    top = asked.scores.amax(-1)[asked.place]
    return asked.first | (asked.own - top >= math.log(settings.c))


def entropy(asked: Candidates, settings: EngineSettings) -> torch.Tensor:
    shares = (asked.scores - asked.sums[:, None]).exp_()
    entropies = torch.special.entr(shares, out=shares).sum(-1)
    least = (math.log(settings.delta) - entropies).clamp_max(math.log(settings.epsilon))
    return asked.first | (asked.logp > least[asked.place])


RULES: dict[str, Callable[[Candidates, EngineSettings], torch.Tensor]] = {
    "relaxed": relaxed, "top_k": top_k, "threshold": threshold, "literal": literal, "ratio": ratio,
    "entropy": entropy}

_NO_NODES = np.zeros(0, np.bool_)


def verify_relaxed(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None, *,
               settings: EngineSettings, eos: torch.Tensor) -> NodeVerification:
    """By tensor operations for any device.

    scores float32 (T, V); strict bool (T,): nodes that pass as first choices alone (None: none); eos
    int64 (E,): end-of-text tokens.
    """
    choices, finite = argmax_finite(scores)
    tokens, place, width = tree.tokens, tree.parents, scores.shape[1]
    own, sums = scores[place, tokens.clamp_max(width - 1)], scores.logsumexp(-1)
    first = tokens == choices[place]
    asked = Candidates(first, own, own - sums[place], scores, sums, place)
    passed = RULES[settings.rule](asked, settings)
    passed = passed & (first | ~torch.isin(tokens, eos))
    if strict is not None:
        passed = torch.where(strict, first, passed)
    return NodeVerification(choices, passed & (tokens < width), finite, asked.logp)


def verify_on_cpu(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None, bounds: Thresholds,
           eos: np.ndarray, seen: PenaltyContext, found: tuple[np.ndarray, ...]) -> VerificationResult:
    """The verdict itself, by compiled code. ``eos`` int64 (E,); found: ``blank``; the others as elsewhere."""
    scores = scores.contiguous()
    strict = _NO_NODES if strict is None else strict.numpy()
    return VerificationResult(*found, accept_relaxed(scores.data_ptr(), scores.shape[1], *tree.host, strict,
                                                     eos, bounds, seen, *found))


def verify_strict(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None) -> NodeVerification:
    """scores float32 (T, V); siblings are distinct, so one branch passes at most. All nodes are strict."""
    choices, finite = argmax_finite(scores)
    return NodeVerification(choices, tree.tokens == choices[tree.parents], finite)


def verify_strict_argmax(tree: Tree, choices: np.ndarray, finite: np.ndarray) -> NodeVerification:
    """The same of first choices int64 (T,) that are known already, and whether they are numbers bool (T,)."""
    tokens, parents = tree.host[:2]
    return NodeVerification(*map(torch.from_numpy, (choices, tokens == choices[parents], finite)))
