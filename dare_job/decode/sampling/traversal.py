"""Traversal verification of trees (Weng et al., arXiv 2505.12398): whole paths are verified, leaves first.

A path's weight is min(1, parent's weight * p / s of its token). A node is verified after all its descendants;
a rejection lowers the weight and the residual of its parent. On a single path this is block verification (Sun
et al., arXiv 2403.10444). It is exact for every draft distribution, since s is the distribution that the
candidate was sampled from.

Trees are traversed along their Euler tours: a node is entered, and left after its descendants.
"""

from typing import NamedTuple

import numba
import numpy as np
import torch

from dare_job.decode.sampling.distributions import NONE, DraftDistribution, distribution_for, sample_tokens
from dare_job.decode.sampling.rules import acceptance_ratio, gather_at, normalised
from dare_job.decode.sampling.verify import CandidateTrees, TreeOutcome
from dare_job.errors import ConfigError


class TourStep(NamedTuple):
    """The current Euler-tour step of each unfinished row; int64 (M,) each, ``entering`` bool (M,).

    Attributes
    ----------
    row, node, parent
        Indices; the parent of a root is -1.
    depth, place
        Depth below the root, and index among the siblings.
    entering
        Whether the node is entered, rather than left.
    """

    row: torch.Tensor
    node: torch.Tensor
    parent: torch.Tensor
    depth: torch.Tensor
    place: torch.Tensor
    entering: torch.Tensor

    def select(self, which: torch.Tensor) -> "TourStep":
        """The steps ``which``, bool (M,)."""
        return TourStep(*(field[which] for field in self))


def euler_tours(tree: CandidateTrees) -> list[TourStep]:
    """Return the steps that all rows take together.

    Raises
    ------
    ConfigError
        Two candidates share a node.
    """
    roots, children = tree.roots.cpu().numpy(), tree.children.cpu().numpy()
    steps, shared = _euler_tours(roots, children)
    if shared >= 0:
        raise ConfigError(f"node {shared} holds two candidates: traversal needs one node per candidate")
    steps = steps[:, np.argsort(steps[0], kind="stable")]
    fields = torch.from_numpy(steps).to(tree.tokens.device)
    lengths = np.bincount(steps[0]).tolist()
    return [TourStep(*step[1:6], step[6] > 0) for step in fields.split(lengths, 1)]


@numba.njit(cache=True)
def _euler_tours(roots, children):
    """Return int64 (7, M), namely step number, row, node, parent, depth, place and entering; and a shared
    node or -1.
    """
    nodes, width = children.shape
    steps, visited = np.empty((7, 2 * nodes), np.int64), np.zeros(nodes, np.bool_)
    path, places, count = np.empty(nodes + 1, np.int64), np.empty(nodes + 1, np.int64), 0
    for row in range(len(roots)):
        path[0], places[0], depth, number, entering = roots[row], 0, 0, 0, True
        while depth >= 0:
            node = path[depth]
            if entering:
                if visited[node]:
                    return steps, node
                visited[node] = True
                _record(steps[:, count], number, row, path, places, depth, 1)
                number, count = number + 1, count + 1
            first = 0 if entering else places[depth + 1] + 1
            while first < width and children[node, first] < 0:
                first += 1
            entering = first < width
            if entering:
                depth += 1
                path[depth], places[depth] = children[node, first], first
            else:
                _record(steps[:, count], number, row, path, places, depth, 0)
                number, count, depth = number + 1, count + 1, depth - 1
    return steps[:, :count].copy(), -1


@numba.njit
def _record(record, number, row, path, places, depth, entering):
    record[0], record[1], record[2] = number, row, path[depth]
    record[3] = path[depth - 1] if depth > 0 else -1
    record[4], record[5], record[6] = depth, places[depth], entering


def traverse(distribution: str, tree: CandidateTrees, p: torch.Tensor, q: torch.Tensor,
             uniforms: torch.Tensor) -> TreeOutcome:
    """Verify trees by traversal.

    Parameters
    ----------
    distribution
        Name of the draft distribution.
    tree
        Candidate trees of R rows, with one node per candidate even for repeated tokens.
    p, q : float32 (N, V)
        After each node; q of leaves is not read.
    uniforms : float64 (N, 2)
        In [0, 1), for acceptance and for the token after the path.

    Raises
    ------
    ConfigError
        Two candidates share a node.
    """
    outcomes = _SampledOutcomes(tree, uniforms)
    Traversal(distribution_for(distribution), tree, p, q).run(outcomes)
    return TreeOutcome(outcomes.nodes, outcomes.token)


class Traversal:
    """Traverses the trees of all rows together, with one state per depth of each row's path.

    Attributes
    ----------
    weight : float64 (D, R)
        Weight of the path to the node.
    residual : float64 (D, R, V)
        Distribution of the token after it.
    s : float64 (D, R, V)
        Distribution of its next candidate.
    """

    def __init__(self, distribution: DraftDistribution, tree: CandidateTrees, p: torch.Tensor,
                 q: torch.Tensor):
        self.distribution, self.tree, self.p, self.q, self.steps = distribution, tree, p, q, euler_tours(tree)
        shape = 1 + max(int(step.depth.max()) for step in self.steps), len(tree.roots), p.shape[1]
        self.weight = p.new_zeros(shape[:2], dtype=torch.float64)
        self.residual, self.s = (p.new_zeros(shape, dtype=torch.float64) for _ in range(2))

    def run(self, outcomes: "_SampledOutcomes") -> None:
        """Traverse all trees. ``outcomes`` accepts or rejects each node that is left; a row ends at the first
        accepted one.
        """
        active = torch.ones(len(self.tree.roots), dtype=torch.bool, device=self.p.device)
        for step in self.steps:
            step = step.select(active[step.row])
            self._enter(step.select(step.entering))
            step = step.select(~step.entering)
            at = step.depth, step.row
            rejected = outcomes.step(step, self.weight[at], self.residual[at])
            active[step.row[~rejected]] = False
            self._reject(step.select(rejected & (step.depth > 0)))

    def _enter(self, step: TourStep) -> None:
        at, parent = (step.depth, step.row), ((step.depth - 1).clamp_min(0), step.row)
        token = self.tree.tokens[step.node]
        weight = acceptance_ratio(self.weight[parent] * gather_at(self.residual[parent], token),
                                  gather_at(self.s[parent], token))
        self.weight[at] = torch.where(step.depth == 0, 1.0, weight)
        self.residual[at] = normalised(self.p[step.node].double())
        self._next(at, step.node, torch.zeros_like(step.node))

    def _next(self, at: tuple[torch.Tensor, torch.Tensor], node: torch.Tensor, place: torch.Tensor) -> None:
        """Set ``s`` for the candidates at these places, of nodes that have one there."""
        requested = self.tree.requested[node]
        for n, j in torch.stack((requested, place))[:, place < requested].unique(dim=1).T.tolist():
            which = (requested == n) & (place == j)
            earlier = self.tree.candidate_tokens(node[which], n)[:, :j]
            s = self.distribution.next_weights(normalised(self.q[node[which]].double()), earlier, n)
            self.s[at[0][which], at[1][which]] = normalised(s)

    def _reject(self, step: TourStep) -> None:
        """Reduce the weight and the residual of each rejected node's parent."""
        parent = step.depth - 1, step.row
        weight, residual, s = self.weight[parent], self.residual[parent], self.s[parent]
        possible = gather_at(s, self.tree.tokens[step.node]) > 0
        gain = (weight[:, None] * residual - s).clamp_min(0)
        total = gain.sum(-1)
        rest = total + (1 - weight)
        reduced = torch.where(rest > 0, total / torch.where(rest > 0, rest, 1.0), weight)
        self.weight[parent] = torch.where(possible, reduced, weight)
        self.residual[parent] = torch.where(possible[:, None], normalised(gain, residual), residual)
        self._next(parent, step.parent, step.place + 1)


class _SampledOutcomes:
    """Samples one outcome per row; a row is finished once a node is accepted."""

    def __init__(self, tree: CandidateTrees, uniforms: torch.Tensor):
        self.uniforms, self.nodes = uniforms, tree.roots.clone()
        self.token = torch.full_like(tree.roots, NONE)

    def step(self, step: TourStep, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Return which nodes are rejected. Roots never are: their weight is 1 up to rounding."""
        passed = (self.uniforms[step.node, 0] < weight) | (step.depth == 0)
        done = step.select(passed)
        self.nodes[done.row] = done.node
        self.token[done.row] = sample_tokens(residual[passed], self.uniforms[done.node, 1])
        return ~passed
