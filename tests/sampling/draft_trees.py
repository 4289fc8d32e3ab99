"""Two-level candidate trees over small vocabularies: enumeration, sampling and the distribution of three
tokens.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dare_job.decode.sampling.distributions import (
    DISTRIBUTIONS,
    NONE,
    enumerate_candidates,
    sample_candidates,
)
from dare_job.decode.sampling.verify import CandidateTrees


@dataclass
class World:
    """p and q float32 after no token (V,), after one (V, V) and after two (V, V, V)."""

    p: list[torch.Tensor]
    q: list[torch.Tensor]

    def joint(self) -> torch.Tensor:
        """Return the target distribution of three tokens, float64 (V, V, V)."""
        first, second, third = (shares(p) for p in self.p)
        return first[:, None, None] * second[:, :, None] * third


def shares(weights: torch.Tensor) -> torch.Tensor:
    weights = weights.double()
    return weights / weights.sum(-1, keepdim=True)


def enumerate_trees(distribution: str, world: World, widths: tuple[int, int]):
    """Return every tree: root candidates (M, w), their candidates (M, w, u), and tree probabilities (M,)."""
    first, probabilities = enumerate_candidates(DISTRIBUTIONS[distribution], world.q[0], widths[0])
    second_level = {
        token: [
            x.tolist()
            for x in enumerate_candidates(DISTRIBUTIONS[distribution], world.q[1][token], widths[1])
        ]
        for token in range(len(world.q[0]))
    }
    second_level[NONE] = [[[NONE] * widths[1]], [1.0]]
    rows = []
    for candidates, probability in zip(first.tolist(), probabilities.tolist(), strict=True):
        for picks in itertools.product(*(zip(*second_level[token], strict=True) for token in candidates)):
            weight = probability
            for _, share in picks:
                weight *= share
            rows.append((candidates, [draws for draws, _ in picks], weight))
    candidates, picks, weights = zip(*rows, strict=True)
    return torch.tensor(candidates), torch.tensor(picks), torch.tensor(weights, dtype=torch.float64)


def enumerate_by_child(
    distribution: str, world: World, widths: tuple[int, int], max_trees: int = 1 << 17
) -> Iterator[tuple]:
    """Enumerate drafts for verifiers that descend node by node, where a path depends only on the candidates
    it meets.

    A path meets the root's candidates and those of one child, not those of its siblings. So each root tuple
    is combined with each tuple of a child, while the siblings take the tuple with the same index. Yields up
    to ``max_trees`` trees at a time: candidates as in ``enumerate_trees``, and weights float64 (M, 1 + w) for
    paths that end at the root and for paths that end at or below each child.
    """
    first, probabilities = enumerate_candidates(DISTRIBUTIONS[distribution], world.q[0], widths[0])
    second_level = [enumerate_candidates(DISTRIBUTIONS[distribution], q, widths[1]) for q in world.q[1]]
    count = max(len(candidates) for candidates, _ in second_level)
    tuples_of = torch.full((len(second_level) + 1, count, widths[1]), NONE)
    shares = torch.zeros((len(second_level) + 1, count), dtype=torch.float64)  # the last line: of NONE
    for token, (candidates, weights) in enumerate(second_level):
        tuples_of[token, : len(candidates)], shares[token, : len(candidates)] = candidates, weights
        tuples_of[token, len(candidates) :] = candidates[-1]
    at_once = max(1, max_trees // count)
    for candidates, weights in zip(first.split(at_once), probabilities.split(at_once), strict=True):
        of_child = shares[candidates].transpose(1, 2)  # (roots, count, w)
        every = torch.cat((torch.full_like(of_child[:, :, :1], 1 / count), of_child), 2)
        yield (candidates.repeat_interleave(count, 0), tuples_of[candidates].transpose(1, 2).flatten(0, 1),
               (weights[:, None, None] * every).flatten(0, 1))


def sample_trees(distribution: str, world: World, widths: tuple[int, int], rows: int, rng: torch.Generator):
    """Sample root candidates (M, w) and their candidates (M, w, u)."""
    def sampled(q, n):
        return sample_candidates(
            DISTRIBUTIONS[distribution], q, n, torch.rand((len(q), n), generator=rng, dtype=torch.float64)
        )

    first = sampled(world.q[0].expand(rows, -1), widths[0])
    second = sampled(world.q[1][first.flatten().clamp_min(0)], widths[1]).view(rows, *widths)
    return first, torch.where(first[:, :, None] == NONE, NONE, second)


def flatten_trees(world: World, first: torch.Tensor, second: torch.Tensor):
    """Return trees of M rows with 1 + w + w u nodes each, some unused, and their p and q (N, V)."""
    rows, wide, deep = second.shape
    size, width = 1 + wide + wide * deep, max(wide, deep)
    roots = torch.arange(rows) * size
    tokens = torch.cat((torch.zeros((rows, 1), dtype=torch.int64), first, second.flatten(1)), 1)
    children = torch.full((rows, size, width), NONE)
    at = roots[:, None] + 1 + torch.arange(wide)
    children[:, 0, :wide] = torch.where(first == NONE, NONE, at)
    at = (roots[:, None] + 1 + wide + torch.arange(wide * deep)).view(rows, wide, deep)
    children[:, 1 : 1 + wide, :deep] = torch.where(second == NONE, NONE, at)
    draws = torch.tensor([wide] + [deep] * wide + [0] * (wide * deep)).repeat(rows)
    above, below = first.clamp_min(0), second.clamp_min(0)
    leaves = world.p[2][above[:, :, None], below].flatten(1, 2)
    p = [world.p[0].expand(rows, 1, -1), world.p[1][above], leaves]
    q = [world.q[0].expand(rows, 1, -1), world.q[1][above], torch.full_like(leaves, torch.nan)]
    tree = CandidateTrees(roots, tokens.flatten(), children.flatten(0, 1), draws)
    return tree, torch.cat(p, 1).flatten(0, 1), torch.cat(q, 1).flatten(0, 1)


def paths(tree: CandidateTrees, rows: int, wide: int, deep: int):
    """Return the depth (N,) of each node and the first and second token (N,) on its path."""
    size = 1 + wide + wide * deep
    place = torch.arange(size).repeat(rows)
    depth = (place > 0).long() + (place > wide).long()
    parent = torch.where(depth == 2, torch.arange(len(place)) - place + 1 + (place - 1 - wide) // deep, 0)
    first = torch.where(depth == 2, tree.tokens[parent], tree.tokens)
    return depth, first, tree.tokens


def three_token_distribution(
    world: World, tree: CandidateTrees, ends: torch.Tensor, probabilities: torch.Tensor, widths
):
    """Return the distribution (V, V, V) of three tokens, completed from p, and the mean number of accepted
    tokens.

    probabilities are float64 (M,) of the trees, or weights (M, 1 + w) of ``enumerate_by_child``.
    """
    rows, tokens, (wide, deep) = len(probabilities), len(world.p[0]), widths
    depth, first, second = paths(tree, rows, *widths)
    if probabilities.dim() == 2:
        of = torch.arange(1, wide + 1)
        probabilities = torch.cat((probabilities, probabilities[:, of.repeat_interleave(deep)]), 1)
    else:
        probabilities = probabilities[:, None].expand(-1, len(ends) // rows)
    ends = ends * probabilities.reshape(-1, 1)
    none, one, two = (torch.zeros((tokens,) * k, dtype=torch.float64) for k in (1, 2, 3))
    none += ends[depth == 0].sum(0)
    one.index_put_((first[depth == 1],), ends[depth == 1], accumulate=True)
    two.index_put_((first[depth == 2], second[depth == 2]), ends[depth == 2], accumulate=True)
    one += none[:, None] * shares(world.p[1])
    two += one[:, :, None] * shares(world.p[2])
    return two, float((ends.sum(-1) * depth).sum())
