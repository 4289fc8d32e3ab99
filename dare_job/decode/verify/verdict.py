"""What a rule says of each node, and the longest accepted branch that follows from it."""

from dataclasses import dataclass

import numba
import numpy as np
import torch

from dare_job.decode.tree import Tree


@dataclass(frozen=True)
class Judgement:
    """A rule's answer, on the device of the scores.

    choices  int64 (R, Q)           the model's first choice behind each node
    passed   bool (R, Q)            the node alone passes, whatever its ancestors do; the root is not asked
    finite   bool (R, Q)            the first choice's score is a number
    logp     float32 (R, Q) | None  log probability of each node's token; None where it cannot matter
    """

    choices: torch.Tensor
    passed: torch.Tensor
    finite: torch.Tensor
    logp: torch.Tensor | None = None

    def numpy(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All four as arrays; from a GPU in one transfer (two with logp)."""
        none = np.zeros((0, 0), np.float32)
        logp = none if self.logp is None else self.logp.cpu().numpy()
        if self.choices.device.type == "cpu":
            return self.choices.numpy(), self.passed.numpy(), self.finite.numpy(), logp
        choices, passed, finite = torch.stack((self.choices, self.passed, self.finite)).cpu().numpy()
        return choices, passed.astype(np.bool_), finite.astype(np.bool_), logp


@dataclass(frozen=True)
class Verdict:
    """The branch each row goes on with, on the host. D is the depth of the deepest tree.

    counts   int64 (R,)        accepted draft tokens
    paths    int64 (R, D + 1)  columns of the root and the accepted nodes
    tokens   int32 (R, D + 1)  the accepted tokens, then the model's own behind them
    relaxed  bool (R, D + 1)   token is not the model's first choice
    finite   bool (R,)         the scores behind the branch are numbers
    sound    bool (R,)         those behind every node of the tree are

    Entries behind ``counts`` mean nothing.
    """

    counts: np.ndarray
    paths: np.ndarray
    tokens: np.ndarray
    relaxed: np.ndarray
    finite: np.ndarray
    sound: np.ndarray


def judge(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First choices (R, Q) of scores (R, Q, V), of equals the first as in ``torch.argmax``; ``finite``."""
    if scores.device.type == "cpu":
        numbers = scores.numpy()
        choices = numbers.argmax(-1)  # ten times torch's speed there
        return torch.from_numpy(choices), torch.from_numpy(_finite(numbers, choices))
    peaks, choices = scores.max(-1)
    return choices, peaks.isfinite()


def longest(tree: Tree, judgement: Judgement) -> Verdict:
    """The longest branch without a node that failed; of equals the more probable one, then the first."""
    rows, width = len(tree.host[0]), tree.depth + 1
    verdict = Verdict(np.empty(rows, np.int64), np.zeros((rows, width), np.int64),
                      np.zeros((rows, width), np.int32), np.zeros((rows, width), np.bool_),
                      np.empty(rows, np.bool_), np.empty(rows, np.bool_))
    _longest(*tree.host, *judgement.numpy(), verdict.counts, verdict.paths, verdict.tokens, verdict.relaxed,
             verdict.finite, verdict.sound)
    return verdict


def undrafted(scores: torch.Tensor) -> Verdict:
    """The verdict of every rule on trees without drafts: the model's own token. scores float32 (R, 1, V)."""
    choices, finite = (x.cpu().numpy() for x in judge(scores))
    counts, paths = np.zeros(len(choices), np.int64), np.zeros(choices.shape, np.int64)
    return Verdict(counts, paths, choices.astype(np.int32), np.zeros(choices.shape, np.bool_),
                   finite[:, 0], finite[:, 0])


@numba.njit(cache=True)
def _finite(scores, choices):
    finite = np.empty(choices.shape, np.bool_)
    for r in range(choices.shape[0]):
        for i in range(choices.shape[1]):
            finite[r, i] = np.isfinite(scores[r, i, choices[r, i]])
    return finite


@numba.njit(cache=True)
def _longest(tokens, parents, depths, valid, choices, passed, finite, logp,
             counts, paths, out, relaxed, out_finite, sound):
    rows, queries = tokens.shape
    accepted = np.empty(queries, np.bool_)
    path = np.zeros(queries, np.float32)  # log probability of the branch down to the node
    for r in range(rows):
        accepted[0] = True
        best = 0
        for i in range(1, queries):
            parent = parents[r, i]
            accepted[i] = valid[r, i] and passed[r, i] and accepted[parent]
            if not accepted[i]:
                continue
            if logp.size:
                path[i] = path[parent] + logp[r, i]
            longer = depths[r, i] - depths[r, best]
            if longer > 0 or (longer == 0 and path[i] > path[best]):
                best = i
        depth = depths[r, best]
        counts[r] = depth
        out[r, depth] = choices[r, best]
        out_finite[r] = finite[r, best]
        sound[r] = finite[r].all()
        node = best
        for place in range(depth, 0, -1):
            parent = parents[r, node]
            paths[r, place] = node
            out[r, place - 1] = tokens[r, node]
            relaxed[r, place - 1] = choices[r, parent] != tokens[r, node]
            node = parent
