"""What a verifier answers, and the longest accepted branch of each tree."""

from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.tree import Tree


@dataclass(frozen=True)
class Verdict:
    """The branch each row goes on with, on the logits' device.

    paths    int64 (R, Q)  its columns, the root first; columns behind ``counts`` mean nothing
    counts   int64 (R,)    accepted draft tokens: paths[r, 1 : 1 + counts[r]]
    bonus    int64 (R,)    the model's own token behind them
    relaxed  bool (R, Q)   along ``paths``: accepted although not the model's first choice
    finite   bool (R,)     the scores at the branch's end are numbers
    """

    paths: torch.Tensor
    counts: torch.Tensor
    bonus: torch.Tensor
    relaxed: torch.Tensor
    finite: torch.Tensor

    def numpy(self) -> "Verdict":
        """The same as numpy arrays, in one transfer."""
        columns = (self.counts, self.bonus, self.finite)
        packed = torch.cat((*(x[:, None] for x in columns), self.paths, self.relaxed), 1).cpu().numpy()
        counts, bonus, finite = packed[:, 0], packed[:, 1], packed[:, 2].astype(bool)
        paths, relaxed = np.split(packed[:, 3:], 2, axis=1)
        return Verdict(paths, counts, bonus, relaxed.astype(bool), finite)


def first_choice(scores: torch.Tensor) -> torch.Tensor:
    """argmax (R, Q) of scores (R, Q, V), the first of equals: the same answer as ``torch.argmax``."""
    if scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().argmax(-1))  # ten times torch's speed there
    return scores.argmax(-1)


def longest(tree: Tree, passed: torch.Tensor, choices: torch.Tensor, scores: torch.Tensor,
            logp: torch.Tensor | None = None) -> Verdict:
    """The longest branch without a node that failed; of equally long ones the more probable.

    passed (R, Q): the node alone passes (roots and padding are set here); choices (R, Q): the model's first
    choices; logp (R, Q): log probability of each node's token, only for ties.
    """
    passed = passed & tree.valid
    passed[:, 0] = True
    accepted = ~(tree.ancestors & ~passed[:, None]).any(-1)  # (R, Q)
    rank = torch.where(accepted, tree.depths, -1)
    if logp is not None:
        rank = _break_ties(tree, rank, logp)
    best = rank.argmax(1, keepdim=True)  # (R, 1)
    queries = rank.shape[1]
    columns = torch.arange(queries, device=rank.device)
    on_path = tree.ancestors.gather(1, best[:, :, None].expand(-1, 1, queries))[:, 0]
    paths = torch.where(on_path, columns, queries - 1).sort(1).values
    relaxed = (tree.tokens != choices.gather(1, tree.parents)).gather(1, paths)
    end = scores.gather(1, best[:, :, None].expand(-1, 1, scores.shape[2]))[:, 0]
    bonus = choices.gather(1, best)
    return Verdict(paths, tree.depths.gather(1, best)[:, 0], bonus[:, 0], relaxed,
                   end.gather(1, bonus)[:, 0].isfinite())


def _break_ties(tree: Tree, rank: torch.Tensor, logp: torch.Tensor) -> torch.Tensor:
    """Among the deepest accepted nodes keep the most probable path's."""
    logp = torch.where(tree.valid, logp, 0.0)
    logp[:, 0] = 0.0
    path = torch.where(tree.ancestors, logp[:, None], 0.0).sum(-1)
    deepest = rank == rank.amax(1, keepdim=True)
    return torch.where(deepest, path, -torch.inf)
