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
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dare_job.decode.request import EngineSettings


@dataclass(frozen=True)
class Asked:
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


def top_k(asked: Asked, settings: EngineSettings) -> torch.Tensor:
    least = asked.scores.topk(min(settings.k, asked.scores.shape[1]), -1).values[:, -1]
    return (asked.own >= least[asked.place]) & asked.own.isfinite()


def literal(asked: Asked, settings: EngineSettings) -> torch.Tensor:
    return top_k(asked, settings) & (asked.logp.exp() > settings.p)


def relaxed(asked: Asked, settings: EngineSettings) -> torch.Tensor:
    return asked.first | literal(asked, settings)


def threshold(asked: Asked, settings: EngineSettings) -> torch.Tensor:
    return asked.first | (asked.logp.exp() > settings.p)


def ratio(asked: Asked, settings: EngineSettings) -> torch.Tensor:
    top = asked.scores.amax(-1)[asked.place]
    return asked.first | (asked.own - top >= math.log(settings.c))


def entropy(asked: Asked, settings: EngineSettings) -> torch.Tensor:
    shares = (asked.scores - asked.sums[:, None]).exp_()
    entropies = torch.special.entr(shares, out=shares).sum(-1)
    least = (math.log(settings.delta) - entropies).clamp_max(math.log(settings.epsilon))
    return asked.first | (asked.logp > least[asked.place])


RULES: dict[str, Callable[[Asked, EngineSettings], torch.Tensor]] = {
    "relaxed": relaxed, "top_k": top_k, "threshold": threshold, "literal": literal, "ratio": ratio,
    "entropy": entropy}
