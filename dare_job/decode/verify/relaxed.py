"""Relaxed verification: a draft token passes where one of the ``rules`` lets it.

An end-of-text token passes only as the first choice. A token that has an embedding but no score (the
embedding may be the wider) does not pass.
"""

import numpy as np
import torch

from dare_job.decode.request import EngineSettings
from dare_job.decode.tree import Tree
from dare_job.decode.verify import compiled
from dare_job.decode.verify.passing import Bounds, passing
from dare_job.decode.verify.rules import RULES, Asked
from dare_job.decode.verify.seen import Seen
from dare_job.decode.verify.verdict import NO_LOGP, Judgement, Verdict, blank, judge

_NO_NODES = np.zeros(0, np.bool_)


def judge_tree(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None, *,
               settings: EngineSettings, eos: torch.Tensor) -> Judgement:
    """By tensor operations for any device.

    scores float32 (T, V); strict bool (T,): nodes that pass as first choices alone (None: none); eos
    int64 (E,): end-of-text tokens.
    """
    choices, finite = judge(scores)
    tokens, place, width = tree.tokens, tree.parents, scores.shape[1]
    own, sums = scores[place, tokens.clamp_max(width - 1)], scores.logsumexp(-1)
    first = tokens == choices[place]
    asked = Asked(first, own, own - sums[place], scores, sums, place)
    passed = RULES[settings.rule](asked, settings)
    passed = passed & (first | ~torch.isin(tokens, eos))
    if strict is not None:
        passed = torch.where(strict, first, passed)
    return Judgement(choices, passed & (tokens < width), finite, asked.logp)


def on_cpu(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None, bounds: Bounds,
           eos: np.ndarray, seen: Seen) -> Verdict:
    """The verdict itself, by compiled code. ``eos`` int64 (E,); the others as elsewhere."""
    tokens, parents, depths, starts = tree.host
    total, found = len(tree), blank(tree)
    choices, passed = np.zeros(total, np.int64), np.zeros(total, np.bool_)
    finite, logp = np.ones(total, np.bool_), np.zeros(total, np.float32)
    forks = passing(scores.contiguous().numpy(), tokens, parents, starts, _NO_NODES if strict is None else
                    strict.numpy(), eos, bounds, seen, choices, passed, finite, logp)
    return Verdict(*found, compiled.longest(tokens, parents, depths, starts, choices, passed, finite,
                                            logp if forks else NO_LOGP, *found))
