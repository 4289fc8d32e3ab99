"""Traversal verification of trees (Weng et al., arXiv 2505.12398): whole paths are judged, leaves first.

A path's weight is min(1, its parent's weight times p / s of its token). Nodes are asked behind all their
descendants; one that is rejected takes its share from its parent, whose weight and owed law fall. On a single
path this is block verification (Sun et al., arXiv 2403.10444). It is exact for every law, as each candidate
is judged by the law that it was drawn from.

The order in which traversal goes through trees: a node is entered, and left behind its descendants.
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
    """One node of each row whose tour is not over, int64 (M,) each but ``entering`` bool (M,).

    row, node, parent   a root's parent is -1
    depth, place        of the node below its root, and among its siblings
    entering            or leaving
    """

    row: torch.Tensor
    node: torch.Tensor
    parent: torch.Tensor
    depth: torch.Tensor
    place: torch.Tensor
    entering: torch.Tensor

    def of(self, which: torch.Tensor) -> "TourStep":
        return TourStep(*(field[which] for field in self))


def euler_tours(tree: CandidateTrees) -> list[TourStep]:
    """The steps that all rows take together. ConfigError where two draws share a node."""
    roots, children = tree.roots.cpu().numpy(), tree.children.cpu().numpy()
    notes, shared = _euler_tours(roots, children)
    if shared >= 0:
        raise ConfigError(f"node {shared} stands for two draws: traversal needs a node for each draw")
    notes = notes[:, np.argsort(notes[0], kind="stable")]
    fields = torch.from_numpy(notes).to(tree.tokens.device)
    lengths = np.bincount(notes[0]).tolist()
    return [TourStep(*each[1:6], each[6] > 0) for each in fields.split(lengths, 1)]


@numba.njit(cache=True)
def _euler_tours(roots, children):
    """int64 (7, M): step, row, node, parent, depth, place, entering, row by row; a node met twice, or -1."""
    nodes, width = children.shape
    notes, taken = np.empty((7, 2 * nodes), np.int64), np.zeros(nodes, np.bool_)
    path, places, count = np.empty(nodes + 1, np.int64), np.empty(nodes + 1, np.int64), 0
    for row in range(len(roots)):
        path[0], places[0], depth, step, entering = roots[row], 0, 0, 0, True
        while depth >= 0:
            node = path[depth]
            if entering:
                if taken[node]:
                    return notes, node
                taken[node] = True
                _record(notes[:, count], step, row, path, places, depth, 1)
                step, count = step + 1, count + 1
            first = 0 if entering else places[depth + 1] + 1
            while first < width and children[node, first] < 0:
                first += 1
            entering = first < width
            if entering:
                depth += 1
                path[depth], places[depth] = children[node, first], first
            else:
                _record(notes[:, count], step, row, path, places, depth, 0)
                step, count, depth = step + 1, count + 1, depth - 1
    return notes[:, :count].copy(), -1


@numba.njit
def _record(note, step, row, path, places, depth, entering):
    note[0], note[1], note[2], note[3] = step, row, path[depth], path[depth - 1] if depth > 0 else -1
    note[4], note[5], note[6] = depth, places[depth], entering


def traverse(law_name: str, tree: CandidateTrees, p: torch.Tensor, q: torch.Tensor,
             uniforms: torch.Tensor) -> TreeOutcome:
    """p and q float32 (N, V), behind each node (q of leaves is not read); uniforms (N, 2) in [0, 1).

    Each draw has a node of its own, also of a token that was drawn before: else ConfigError.
    """
    chance = _Sampled(tree, uniforms)
    _Traversal(distribution_for(law_name), tree, p, q).run(chance)
    return TreeOutcome(chance.nodes, chance.token)


def traversal_distribution(
    law_name: str, tree: CandidateTrees, p: torch.Tensor, q: torch.Tensor
) -> torch.Tensor:
    """Probability float64 (N, V) that a row's path ends at a node with a token behind it, exactly."""
    chance = _Exact(tree, p)
    _Traversal(distribution_for(law_name), tree, p, q).run(chance)
    return chance.ends


class _Traversal:
    """The rows go through their trees together. A row keeps one state for each depth of its path.

    weight  float64 (D, R)     of the path to the node
    owed    float64 (D, R, V)  law of the token behind it
    s       float64 (D, R, V)  law of its next candidate
    """

    def __init__(self, law: DraftDistribution, tree: CandidateTrees, p: torch.Tensor, q: torch.Tensor):
        self.law, self.tree, self.p, self.q, self.steps = law, tree, p, q, euler_tours(tree)
        shape = 1 + max(int(step.depth.max()) for step in self.steps), len(tree.roots), p.shape[1]
        self.weight = p.new_zeros(shape[:2], dtype=torch.float64)
        self.owed, self.s = (p.new_zeros(shape, dtype=torch.float64) for _ in range(2))

    def run(self, chance: "_Sampled | _Exact") -> None:
        going = torch.ones(len(self.tree.roots), dtype=torch.bool, device=self.p.device)
        for step in self.steps:
            step = step.of(going[step.row])
            self._enter(step.of(step.entering))
            step = step.of(~step.entering)
            here = step.depth, step.row
            left = chance.step(step, self.weight[here], self.owed[here])
            going[step.row[~left]] = False
            self._reject(step.of(left & (step.depth > 0)))

    def _enter(self, step: TourStep) -> None:
        here, up = (step.depth, step.row), ((step.depth - 1).clamp_min(0), step.row)
        token = self.tree.tokens[step.node]
        weight = acceptance_ratio(
            self.weight[up] * gather_at(self.owed[up], token), gather_at(self.s[up], token)
        )
        self.weight[here] = torch.where(step.depth == 0, 1.0, weight)
        self.owed[here] = normalised(self.p[step.node].double())
        self._next(here, step.node, torch.zeros_like(step.node))

    def _next(self, here: tuple[torch.Tensor, torch.Tensor], node: torch.Tensor, place: torch.Tensor) -> None:
        """``s`` of the nodes' candidates in the places, where they have one there."""
        draws = self.tree.draws[node]
        for n, j in torch.stack((draws, place))[:, place < draws].unique(dim=1).T.tolist():
            these = (draws == n) & (place == j)
            earlier = self.tree.drawn(node[these], n)[:, :j]
            s = self.law.after(normalised(self.q[node[these]].double()), earlier, n)
            self.s[here[0][these], here[1][these]] = normalised(s)

    def _reject(self, step: TourStep) -> None:
        """The parent of each rejected node is owed less."""
        up = step.depth - 1, step.row
        weight, owed, s = self.weight[up], self.owed[up], self.s[up]
        drawn = gather_at(s, self.tree.tokens[step.node]) > 0
        gain = (weight[:, None] * owed - s).clamp_min(0)
        total = gain.sum(-1)
        rest = total + (1 - weight)
        fallen = torch.where(rest > 0, total / torch.where(rest > 0, rest, 1.0), weight)
        self.weight[up] = torch.where(drawn, fallen, weight)
        self.owed[up] = torch.where(drawn[:, None], normalised(gain, owed), owed)
        self._next(up, step.parent, step.place + 1)


class _Sampled:
    """One thing happens to each row; a row whose node is accepted is done."""

    def __init__(self, tree: CandidateTrees, uniforms: torch.Tensor):
        self.uniforms, self.nodes = uniforms, tree.roots.clone()
        self.token = torch.full_like(tree.roots, NONE)

    def step(self, step: TourStep, weight: torch.Tensor, owed: torch.Tensor) -> torch.Tensor:
        """Which nodes are rejected; no root is, as its weight is 1 but for rounding."""
        passed = (self.uniforms[step.node, 0] < weight) | (step.depth == 0)
        done = step.of(passed)
        self.nodes[done.row] = done.node
        self.token[done.row] = sample_tokens(owed[passed], self.uniforms[done.node, 1])
        return ~passed


class _Exact:
    """All happens, with its probability."""

    def __init__(self, tree: CandidateTrees, p: torch.Tensor):
        self.chance = p.new_ones(len(tree.roots), dtype=torch.float64)
        self.ends = p.new_zeros(p.shape, dtype=torch.float64)

    def step(self, step: TourStep, weight: torch.Tensor, owed: torch.Tensor) -> torch.Tensor:
        weight = torch.where(step.depth == 0, 1.0, weight)
        self.ends[step.node] = (self.chance[step.row] * weight)[:, None] * owed
        self.chance[step.row] *= 1 - weight
        return torch.ones_like(step.entering)
