"""Strict verification: a draft token passes when it is the model's first choice.

The accepted branch is what greedy decoding would have written, and the token behind it too.
"""

import torch

from dare_job.decode.tree import Tree
from dare_job.decode.verify.verdict import Judgement, judge


def verify(scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None = None) -> Judgement:
    """scores float32 (T, V); siblings are distinct, so one branch passes at most. All nodes are strict."""
    choices, finite = judge(scores)
    return Judgement(choices, tree.tokens == choices[tree.parents], finite)
