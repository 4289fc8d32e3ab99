"""Strict verification: a draft token passes when it is the model's first choice.

The accepted branch is what greedy decoding would have written, and the token behind it too. On a CPU the
whole verdict comes from ``compiled.branch``.
"""

import numpy as np
import torch

from dare_job.decode.tree import Tree
from dare_job.decode.verify.verdict import Judgement, judge


def judge_tree(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None) -> Judgement:
    """scores float32 (T, V); siblings are distinct, so one branch passes at most. All nodes are strict."""
    choices, finite = judge(scores)
    return Judgement(choices, tree.tokens == choices[tree.parents], finite)


def judgement(tree: Tree, choices: np.ndarray, finite: np.ndarray) -> Judgement:
    """The same of first choices int64 (T,) that are known already, and whether they are numbers bool (T,)."""
    tokens, parents = tree.host[:2]
    return Judgement(*map(torch.from_numpy, (choices, tokens == choices[parents], finite)))
