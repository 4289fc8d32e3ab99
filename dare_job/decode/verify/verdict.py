"""What a rule says of each node, and the longest accepted branch that follows from it."""

from dataclasses import dataclass

import numba
import numpy as np
import torch

from dare_job.decode.tree import Tree

_NOT_GIVEN, _NO_LOGP = np.zeros(0, np.bool_), np.zeros(0, np.float32)
_NO_SCORES = np.zeros((0, 0), np.float32)


@dataclass(frozen=True)
class Judgement:
    """A rule's answer for the T queries of a tree, on the device of the scores.

    choices  int64 (T,)           the model's first choice behind each node
    passed   bool (T,) | None     the node alone passes, whatever its ancestors do; roots are not asked; None:
                                  it passes as the first choice
    finite   bool (T,) | None     the first choice's score is a number; None: as ``scores`` have it
    logp     float32 (T,) | None  log probability of each node's token; None where it cannot matter
    scores   float32 (T, V) | None
    """

    choices: torch.Tensor
    passed: torch.Tensor | None
    finite: torch.Tensor | None
    logp: torch.Tensor | None = None
    scores: torch.Tensor | None = None

    def numpy(self) -> tuple[np.ndarray, ...]:
        """All as arrays, empty ones for None; from a GPU in one transfer (two with logp)."""
        scores = _NO_SCORES if self.scores is None else self.scores.numpy()
        if self.choices.device.type == "cpu":
            given = (_NOT_GIVEN if x is None else x.numpy() for x in (self.passed, self.finite))
            return self.choices.numpy(), *given, _NO_LOGP if self.logp is None else self.logp.numpy(), scores
        choices, passed, finite = torch.stack((self.choices, self.passed, self.finite)).cpu().numpy()
        logp = _NO_LOGP if self.logp is None else self.logp.cpu().numpy()
        return choices, passed.astype(np.bool_), finite.astype(np.bool_), logp, scores


@dataclass(frozen=True)
class Verdict:
    """The branch each row goes on with, on the host. D is the depth of the deepest tree.

    counts   int64 (R,)        accepted draft tokens
    paths    int64 (R, D + 1)  the root (0) and the accepted nodes, as numbers among the row's queries
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
    """First choices (T,) of scores (T, V), of equals the first as in ``torch.argmax``; ``finite``."""
    if scores.device.type == "cpu":
        choices = first_choices(scores)
        return choices, torch.from_numpy(_finite(scores.numpy(), choices.numpy()))
    peaks, choices = scores.max(-1)
    return choices, peaks.isfinite()


def first_choices(scores: torch.Tensor) -> torch.Tensor:
    """On a CPU: the same first choices by numpy, at ten times torch's speed."""
    return torch.from_numpy(scores.numpy().argmax(-1))


def longest(tree: Tree, judgement: Judgement) -> Verdict:
    """The longest branch without a node that failed; of equals the more probable one, then the first."""
    rows, width = len(tree.starts) - 1, tree.depth + 1
    verdict = Verdict(np.empty(rows, np.int64), np.zeros((rows, width), np.int64),
                      np.zeros((rows, width), np.int32), np.zeros((rows, width), np.bool_),
                      np.empty(rows, np.bool_), np.empty(rows, np.bool_))
    _longest(*tree.host, *judgement.numpy(), verdict.counts, verdict.paths, verdict.tokens, verdict.relaxed,
             verdict.finite, verdict.sound)
    return verdict


def undrafted(scores: torch.Tensor) -> Verdict:
    """The verdict of every rule on trees without drafts: the model's own token. scores float32 (R, V)."""
    choices, finite = (x.cpu().numpy() for x in judge(scores))
    rows = len(choices)
    return Verdict(np.zeros(rows, np.int64), np.zeros((rows, 1), np.int64), choices[:, None].astype(np.int32),
                   np.zeros((rows, 1), np.bool_), finite, finite)


@numba.njit(cache=True)
def _finite(scores, choices):
    finite = np.empty(choices.shape, np.bool_)
    for t in range(len(choices)):
        finite[t] = np.isfinite(scores[t, choices[t]])
    return finite


@numba.njit(cache=True)
def _longest(tokens, parents, depths, starts, choices, passed, finite, logp, scores, counts, paths, out,
             relaxed, out_finite, sound):
    accepted = np.empty(len(tokens), np.bool_)
    path = np.zeros(len(tokens), np.float32)  # log probability of the branch down to the node
    for r in range(len(starts) - 1):
        root = starts[r]
        best = root
        accepted[root] = True
        sound[r] = True
        for t in range(root, starts[r + 1]):
            number = finite[t] if finite.size else np.isfinite(scores[t, choices[t]])
            sound[r] &= number
            if t == root:
                out_finite[r] = number
                continue
            parent = parents[t]
            passes = passed[t] if passed.size else tokens[t] == choices[parent]
            accepted[t] = passes and accepted[parent]
            if not accepted[t]:
                continue
            if logp.size:
                path[t] = path[parent] + logp[t]
            longer = depths[t] - depths[best]
            if longer > 0 or (longer == 0 and path[t] > path[best]):
                best = t
                out_finite[r] = number
        depth = depths[best]
        counts[r] = depth
        out[r, depth] = choices[best]
        node = best
        for place in range(depth, 0, -1):
            parent = parents[node]
            paths[r, place] = node - root
            out[r, place - 1] = tokens[node]
            relaxed[r, place - 1] = choices[parent] != tokens[node]
            node = parent
