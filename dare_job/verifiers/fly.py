"""FLy: a mismatch is accepted where the model is unsure, and agrees with the draft again right after it."""

import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.plugin import VerifyContext
from dare_job.decode.verify.result import NodeVerification
from dare_job.errors import ConfigError
from dare_job.verifiers.nodes import Nodes

_TOP = 3  # terms of the entropy


class Fly:
    """Accept a token that is not the argmax if two conditions hold.

    - Entropy gate: the sum of -q log q over the three most probable tokens is at least ``entropy``, in nats,
      so that the model is unsure at this place.
    - Deferred window: after the token, the next ``window`` draft tokens of the same path are the argmax.

    So no two such tokens stand closer together than that. Li et al. 2025, "Training-Free Loosely Speculative
    Decoding: Accepting Semantically Correct Drafts Beyond Exact Match", arXiv 2511.22972, with the gate and
    the values of its code (AMD-AGI/FLy: ``entropy_thre`` 0.3; ``win_len`` 6 counts the token itself). The
    paper verifies chains; here each path of the tree is one.

    Parameters
    ----------
    eos : int64 (E,)
        Not used: the engine accepts an end of text only as the argmax.
    entropy : float
        0 or more; 0: no gate.
    window : int
        At least 1. A draft has to be at least one token deeper (``decode.depth``).

    Raises
    ------
    ConfigError
        An option is out of its range.
    """

    lossless = False

    def __init__(self, eos: torch.Tensor, entropy: float = 0.3, window: int = 5):
        if not (entropy >= 0 and window >= 1):
            raise ConfigError(f"entropy is {entropy!r} and window {window!r}; they must be at least 0 and 1")
        self._entropy, self._window = entropy, window

    def __call__(self, scores: torch.Tensor, tree: Tree, context: VerifyContext) -> NodeVerification:
        nodes = Nodes.of(scores, tree, context)
        above, below = _matches(tree, nodes.is_top, self._window)
        parents = tree.parents
        is_loose = (tree.depths > 0) & ~nodes.is_top & (above[parents] >= self._window) & (
            below >= self._window)
        loose = is_loose.nonzero()[:, 0]
        passed = nodes.is_top.clone()
        passed[loose] = _top_entropy(scores[parents[loose]]) >= self._entropy
        return nodes.verified(passed, context)


def _matches(tree: Tree, is_top: torch.Tensor, enough: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Count the matches next to each node: those up from it without a mismatch, and those down from it.

    Parameters
    ----------
    is_top : bool (T,)
        Matches.
    enough : int
        What counts where no mismatch is above.

    Returns
    -------
    above, below : int64 (T,)
        ``above`` includes the node itself. Down from a node at most one path consists of matches.
    """
    parents, depths = tree.parents, tree.depths
    above, below = torch.full_like(parents, enough), torch.zeros_like(parents)
    levels = [(depths == depth).nonzero()[:, 0] for depth in range(1, tree.depth + 1)]
    for level in levels:
        above[level] = torch.where(is_top[level], above[parents[level]] + 1, 0)
    for level in reversed(levels):
        matching = level[is_top[level]]
        below.scatter_reduce_(0, parents[matching], below[matching] + 1, "amax")
    return above, below


def _top_entropy(scores: torch.Tensor) -> torch.Tensor:
    """The terms of the entropy, in nats, of the most probable tokens, summed; ``scores`` (N, V)."""
    logp = scores.log_softmax(-1).topk(min(_TOP, scores.shape[1]), -1).values
    return torch.special.entr(logp.exp()).sum(-1)
