"""Relaxed verification: a draft token passes where one of the ``rules`` lets it.

An end-of-text token passes only as the first choice. A token that has an embedding but no score (the
embedding may be the wider) does not pass.

On a CPU a rule is asked only of nodes that a branch can reach, going by what costs one look at a score or
one count over them: the sums over the vocabulary, which take most of the time, are left to few nodes.
"""

import math

import numpy as np
import torch

from dare_job.decode.request import EngineSettings
from dare_job.decode.tree import Tree
from dare_job.decode.verify.compiled import reached
from dare_job.decode.verify.rules import RULES, Asked
from dare_job.decode.verify.verdict import Judgement, judge

_COUNTED = ("relaxed", "literal", "top_k")  # rules that a token passes only among the k most probable
_ROUNDING = 1e-3  # nats, so that no token is left out that the rule itself would let pass


def judge_tree(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None, *,
               settings: EngineSettings, eos: torch.Tensor) -> Judgement:
    """scores float32 (T, V); strict bool (T,): nodes that pass as first choices alone (None: none); eos
    int64 (E,): end-of-text tokens.
    """
    if scores.device.type != "cpu":
        choices, finite = judge(scores)
        passed, logp = _passed(scores, choices, tree.tokens, tree.parents, strict, settings, eos)
        return Judgement(choices, passed, finite, logp)
    total = len(scores)
    choices, finite = np.zeros(total, np.int64), np.ones(total, np.bool_)
    nodes = reached(scores.contiguous().numpy(), *tree.host[:2], *_bounds(settings), choices, finite)
    choices, finite, nodes = map(torch.from_numpy, (choices, finite, nodes))
    passed, logp = torch.zeros(total, dtype=torch.bool), torch.zeros(total)
    if len(nodes):
        asked = None if strict is None else strict[nodes]
        passed[nodes], logp[nodes] = _passed(scores, choices, tree.tokens[nodes], tree.parents[nodes], asked,
                                             settings, eos)
    return Judgement(choices, passed, finite, logp)


def _passed(scores: torch.Tensor, choices: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor,
            strict: torch.Tensor | None, settings: EngineSettings,
            eos: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether nodes with these tokens and parents (N,) pass, and their log probabilities."""
    width = scores.shape[1]
    own = scores[parents, tokens.clamp_max(width - 1)]
    above, place = torch.unique(parents, return_inverse=True) if scores.device.type == "cpu" else (
        None, parents)  # on a GPU finding the distinct ones would wait for it
    scores = scores if above is None else scores.index_select(0, above)
    sums = scores.logsumexp(-1)
    first = tokens == choices[parents]
    asked = Asked(first, own, own - sums[place], scores, sums, place)
    passed = RULES[settings.rule](asked, settings)
    passed = passed & (first | ~torch.isin(tokens, eos))
    if strict is not None:
        passed = torch.where(strict, first, passed)
    return passed & (tokens < width), asked.logp


def _bounds(settings: EngineSettings) -> tuple[int, float]:
    """What a token must hold to pass as another than the first choice: it is among so many most probable ones
    (0: among any), and its score is at most so far under the first choice's.

    The first choice's probability is 1 at most, so a token over p is at most log(1 / p) under it.
    """
    least = {"relaxed": settings.p, "literal": settings.p, "threshold": settings.p, "ratio": settings.c}
    share = least.get(settings.rule, 0.0)
    return (settings.k if settings.rule in _COUNTED else 0,
            _ROUNDING - math.log(share) if share > 0 else math.inf)
