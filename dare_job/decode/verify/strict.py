"""Strict verification: a draft token is accepted when it is the model's first choice.

The accepted branch is what greedy decoding would have written, and the token behind it too.
"""

import torch

from dare_job.decode.tree import Tree
from dare_job.decode.verify.verdict import Verdict, first_choice, longest


def verify(scores: torch.Tensor, tree: Tree) -> Verdict:
    """scores float32 (R, Q, V); siblings are distinct, so one branch passes at most."""
    choices = first_choice(scores)
    return longest(tree, tree.tokens == choices.gather(1, tree.parents), choices, scores)
