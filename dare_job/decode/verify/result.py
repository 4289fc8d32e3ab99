"""What a rule says of each node, and the longest accepted branch that follows from it."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.verify import compiled
from dare_job.decode.verify.penalty import PenaltyContext

NO_LOGP = np.zeros(0, np.float32)


@dataclass(frozen=True)
class NodeVerification:
    """A rule's answer for the T queries of a tree, on the device of the scores.

    choices  int64 (T,)           the model's first choice behind each node
    passed   bool (T,)            the node alone passes, whatever its ancestors do; roots are not asked
    finite   bool (T,)            the first choice's score is a number
    logp     float32 (T,) | None  log probability of each node's token; None where it cannot matter

    Nodes that no branch reaches may have no choice; they do not pass, and are finite.
    """

    choices: torch.Tensor
    passed: torch.Tensor
    finite: torch.Tensor
    logp: torch.Tensor | None = None

    def numpy(self) -> tuple[np.ndarray, ...]:
        """All as arrays, an empty one for None; from a GPU in one transfer (two with logp)."""
        logp = NO_LOGP if self.logp is None else self.logp.cpu().numpy()
        if self.choices.device.type == "cpu":
            return self.choices.numpy(), self.passed.numpy(), self.finite.numpy(), logp
        choices, passed, finite = torch.stack((self.choices, self.passed, self.finite)).cpu().numpy()
        return choices, passed.astype(np.bool_), finite.astype(np.bool_), logp


class VerificationResult(NamedTuple):
    """The branch each row goes on with, on the host. D is the depth of the deepest tree.

    counts   int64 (R,)        accepted draft tokens
    paths    int64 (R, D + 1)  the root (0) and the accepted nodes, as numbers among the row's queries
    tokens   int32 (R, D + 1)  the accepted tokens, then the model's own behind them
    relaxed  bool (R, D + 1)   the token was not the model's first choice
    finite   bool (R,)         the scores behind the branch are numbers
    sound    bool (R,)         those behind every node of the tree are; on a CPU, every node that was reached
    all_finite                  of all rows

    Entries behind ``counts`` mean nothing.
    """

    counts: np.ndarray
    paths: np.ndarray
    tokens: np.ndarray
    relaxed: np.ndarray
    finite: np.ndarray
    tree_finite: np.ndarray
    all_finite: bool


def empty_result(tree: Tree) -> tuple[np.ndarray, ...]:
    """All but the last of a verdict, not filled in."""
    rows = len(tree.starts) - 1
    shape = rows, tree.depth + 1
    return (np.empty(rows, np.int64), np.empty(shape, np.int64), np.empty(shape, np.int32),
            np.empty(shape, np.bool_), np.empty(rows, np.bool_), np.empty(rows, np.bool_))


class ResultBuffers:
    """Memory of verdicts: one is written over by the next one of its shape. Between two forwards new arrays
    are far from the processor, as is all that is touched first.
    """

    _MOST = 64  # shapes

    def __init__(self):
        self._known: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}

    def __call__(self, tree: Tree) -> tuple[np.ndarray, ...]:
        """As ``blank``."""
        shape = len(tree.starts), tree.depth
        found = self._known.get(shape)
        if found is None:
            if len(self._known) == self._MOST:
                self._known.clear()
            found = self._known[shape] = empty_result(tree)
        return found


def longest_accepted(tree: Tree, judgement: NodeVerification) -> VerificationResult:
    """The longest branch without a node that failed; of equals the more probable one, then the first."""
    found = empty_result(tree)
    return VerificationResult(*found, compiled.longest_branch(*tree.host, *judgement.numpy(), *found))


def verify_strict_on_cpu(tree: Tree, scores: torch.Tensor, seen: PenaltyContext,
                         found: tuple[np.ndarray, ...]) -> VerificationResult:
    """On a CPU: the strict verdict, which is every rule's where nothing is drafted. scores float32 (T, V);
    found: ``blank``.
    """
    tokens, parents, _, starts = tree.host
    scores = scores.contiguous()
    return VerificationResult(*found, compiled.accept_strict(scores.data_ptr(), scores.shape[1], tokens,
                                                             parents, starts, seen, *found))


def argmax_finite(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First choices (T,) of scores (T, V), of equals the first; ``finite``."""
    peaks, choices = scores.max(-1)
    return choices, peaks.isfinite()


def verify_roots(scores: torch.Tensor) -> VerificationResult:
    """The verdict of every rule on trees without drafts: the model's own token. scores float32 (R, V)."""
    choices, finite = (x.cpu().numpy() for x in argmax_finite(scores))
    rows = len(choices)
    return VerificationResult(np.zeros(rows, np.int64), np.zeros((rows, 1), np.int64),
                              choices[:, None].astype(np.int32), np.zeros((rows, 1), np.bool_), finite,
                              finite, bool(finite.all()))
