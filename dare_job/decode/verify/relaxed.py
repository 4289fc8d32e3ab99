"""Relaxed verification: a draft token passes where one of the ``rules`` lets it.

An end-of-text token passes only as the first choice. A token that has an embedding but no score (the
embedding may be the wider) does not pass.
"""

import numpy as np
import torch

from dare_job.decode.request import EngineSettings
from dare_job.decode.tree import Tree
from dare_job.decode.verify.rules import RULES, Asked
from dare_job.decode.verify.verdict import Judgement, judge

_COPIED = 0.75  # of the nodes: where more have children, all of them are looked at in place


def verify(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None, *,
           settings: EngineSettings, eos: torch.Tensor) -> Judgement:
    """scores float32 (T, V); strict bool (T,): nodes that pass as first choices alone (None: none); eos
    int64 (E,): end-of-text tokens.
    """
    choices, finite = judge(scores)
    asked = _asked(scores, choices, tree)
    passed = RULES[settings.rule](asked, settings)
    passed = passed & (asked.first | ~torch.isin(tree.tokens, eos))
    if strict is not None:
        passed = torch.where(strict, asked.first, passed)
    return Judgement(choices, passed & (tree.tokens < scores.shape[1]), finite, asked.logp)


def _asked(scores: torch.Tensor, choices: torch.Tensor, tree: Tree) -> Asked:
    """What the rules need, by scores (T, V) and first choices (T,)."""
    parents, tokens = tree.parents, tree.tokens
    own = scores[parents, tokens.clamp_max(scores.shape[1] - 1)]
    place = parents
    is_parent = np.zeros(len(scores), np.bool_)
    is_parent[tree.host[1]] = True  # a root is its own
    if np.count_nonzero(is_parent) <= _COPIED * len(scores):
        nodes, places = np.flatnonzero(is_parent), (np.cumsum(is_parent) - 1)[tree.host[1]]
        scores = scores.index_select(0, torch.from_numpy(nodes).to(scores.device))
        place = torch.from_numpy(places).to(scores.device)
    sums = scores.logsumexp(-1)
    first = tokens == choices.index_select(0, parents)
    return Asked(first, own, own - sums.index_select(0, place), scores, sums, place)
