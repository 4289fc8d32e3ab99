"""The result of verification: which nodes pass, and the longest accepted path of each row."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.verify import compiled

NO_LOGP = np.zeros(0, np.float32)


@dataclass(frozen=True)
class NodeVerification:
    """Verification of each of the T queries of a tree, on the device of the scores.

    Nodes that no accepted path reaches may lack an argmax. They do not pass and count as finite.

    Attributes
    ----------
    argmax : int64 (T,)
        Token with the highest score after each node.
    passed : bool (T,)
        Whether the node's token passes by itself, regardless of its ancestors. Undefined for roots.
    finite : bool (T,), optional
        Whether the highest score is finite. None from a plug-in: the engine knows it.
    logp : float32 (T,), optional
        Log probability of each node's token. None where at most one path of a tree can pass.
    """

    argmax: torch.Tensor
    passed: torch.Tensor
    finite: torch.Tensor | None = None
    logp: torch.Tensor | None = None

    def numpy(self) -> tuple[np.ndarray, ...]:
        """Return all fields as arrays, ``logp`` None as an empty one. One GPU transfer, two with ``logp``."""
        logp = NO_LOGP if self.logp is None else self.logp.cpu().numpy()
        if self.argmax.device.type == "cpu":
            return self.argmax.numpy(), self.passed.numpy(), self.finite.numpy(), logp
        argmax, passed, finite = torch.stack((self.argmax, self.passed, self.finite)).cpu().numpy()
        return argmax, passed.astype(np.bool_), finite.astype(np.bool_), logp


class VerificationResult(NamedTuple):
    """The accepted path of each of R rows, on the host. D is the depth of the deepest tree.

    Entries after a row's ``counts`` are undefined.

    Attributes
    ----------
    counts : int64 (R,)
        Accepted draft tokens.
    paths : int64 (R, D + 1)
        The root (0) and the accepted nodes, as indices among the row's queries.
    tokens : int32 (R, D + 1)
        The accepted tokens, then the token that the target itself chose after them.
    relaxed : bool (R, D + 1)
        Whether the token differs from the target's argmax.
    finite : bool (R,)
        Whether the scores after the accepted path are finite.
    tree_finite : bool (R,)
        Whether the scores after every node are finite; on a CPU, after every node that was visited.
    all_finite : bool
        ``tree_finite`` of all rows.
    """

    counts: np.ndarray
    paths: np.ndarray
    tokens: np.ndarray
    relaxed: np.ndarray
    finite: np.ndarray
    tree_finite: np.ndarray
    all_finite: bool


def empty_result(tree: Tree) -> tuple[np.ndarray, ...]:
    """Allocate the arrays of a ``VerificationResult``, uninitialized and without ``all_finite``."""
    rows = len(tree.starts) - 1
    shape = rows, tree.depth + 1
    return (np.empty(rows, np.int64), np.empty(shape, np.int64), np.empty(shape, np.int32),
            np.empty(shape, np.bool_), np.empty(rows, np.bool_), np.empty(rows, np.bool_))


class ResultBuffers:
    """Reusable ``empty_result`` arrays, one set for each shape; a new result overwrites the previous one.

    Between two forward passes, newly allocated arrays would not be in the processor's cache.
    """

    _MAX_SHAPES = 64

    def __init__(self):
        self._by_shape: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}

    def __call__(self, tree: Tree) -> tuple[np.ndarray, ...]:
        shape = len(tree.starts), tree.depth
        buffers = self._by_shape.get(shape)
        if buffers is None:
            if len(self._by_shape) == self._MAX_SHAPES:
                self._by_shape.clear()
            buffers = self._by_shape[shape] = empty_result(tree)
        return buffers


def longest_accepted(tree: Tree, nodes: NodeVerification) -> VerificationResult:
    """Accept each row's longest path of nodes that passed; ties: the more probable path, then the first."""
    buffers = empty_result(tree)
    return VerificationResult(*buffers, compiled.longest_branch(*tree.host, *nodes.numpy(), *buffers))


def argmax_finite(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the argmax int64 (T,) of ``scores`` (T, V), the first of equals, and whether it is finite."""
    peaks, argmax = scores.max(-1)
    return argmax, peaks.isfinite()


def verify_roots(scores: torch.Tensor) -> VerificationResult:
    """Take the target's own token of each row; trees without drafts. ``scores`` float32 (R, V)."""
    argmax, finite = (x.cpu().numpy() for x in argmax_finite(scores))
    rows = len(argmax)
    return VerificationResult(np.zeros(rows, np.int64), np.zeros((rows, 1), np.int64),
                              argmax[:, None].astype(np.int32), np.zeros((rows, 1), np.bool_), finite,
                              finite, bool(finite.all()))
