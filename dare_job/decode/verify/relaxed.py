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
    parents = tree.parents
    own = scores[parents, tree.tokens.clamp_max(scores.shape[1] - 1)]
    top = scores.gather(1, choices[:, None])[:, 0]
    nodes, place = _distinct(tree.host[1])
    if len(nodes) > _COPIED * len(scores):
        place = parents
    else:
        scores, place = (scores[torch.from_numpy(nodes).to(scores.device)],
                         torch.from_numpy(place).to(scores.device))
    sums = scores.logsumexp(-1)
    return Asked(tree.tokens == choices[parents], own, top[parents], own - sums[place], scores, sums, place)


def _distinct(parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nodes that are parents (a root is its own), ascending; the place of each node's among them."""
    is_parent = np.zeros(len(parents), np.bool_)
    is_parent[parents] = True
    return np.flatnonzero(is_parent), (np.cumsum(is_parent) - 1)[parents]
