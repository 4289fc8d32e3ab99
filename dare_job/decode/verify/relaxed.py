"""Relaxed verification: a draft token passes where one of the ``rules`` lets it.

An end-of-text token passes only as the first choice. A token that has an embedding but no score (the
embedding may be the wider) does not pass.
"""

import numpy as np
import torch

from dare_job.decode.request import EngineSettings
from dare_job.decode.tree import Tree
from dare_job.decode.verify.passing import Bounds, branch
from dare_job.decode.verify.rules import RULES, Asked
from dare_job.decode.verify.seen import Seen
from dare_job.decode.verify.verdict import Judgement, Verdict, judge

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
           eos: np.ndarray, seen: Seen, found: tuple[np.ndarray, ...]) -> Verdict:
    """The verdict itself, by compiled code. ``eos`` int64 (E,); found: ``blank``; the others as elsewhere."""
    scores = scores.contiguous()
    return Verdict(*found, branch(scores.data_ptr(), scores.shape[1], *tree.host, _NO_NODES if strict is None
                                  else strict.numpy(), eos, bounds, seen, *found))
