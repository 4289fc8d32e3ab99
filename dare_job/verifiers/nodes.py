"""What the verifiers of this folder share: the draft tokens of a tree beside the argmax of their parents."""

from typing import NamedTuple

import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.plugin import VerifyContext
from dare_job.decode.verify.result import NodeVerification


class Nodes(NamedTuple):
    """The T queries of a tree as draft tokens. Entries of roots have no meaning.

    Attributes
    ----------
    is_top : bool (T,)
        Whether the token is the argmax of its parent.
    own, peak : float32 (T,)
        Score of the token, and of its parent's argmax.
    """

    is_top: torch.Tensor
    own: torch.Tensor
    peak: torch.Tensor

    @classmethod
    def of(cls, scores: torch.Tensor, tree: Tree, context: VerifyContext) -> "Nodes":
        """Compare the tokens of a tree with ``scores`` (T, V). A token without a score counts as the last."""
        parents, peaks = tree.parents, scores.gather(1, context.argmax[:, None])[:, 0]
        own = scores[parents, tree.tokens.clamp_max(scores.shape[1] - 1)]
        return cls(tree.tokens == context.argmax[parents], own, peaks[parents])

    def verified(self, passed: torch.Tensor, context: VerifyContext) -> NodeVerification:
        """The result of a verifier, from ``passed`` bool (T,).

        Between paths of equal length the scores decide, less those of the argmax: unlike log probabilities
        they need no sum over the vocabulary, and prefer the same child of a node.
        """
        return NodeVerification(context.argmax, passed, torch.ones_like(passed), self.own - self.peak)
