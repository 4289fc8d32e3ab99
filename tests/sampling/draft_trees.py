"""Trees of two levels over few tokens: all that may be drafted, the law of three tokens."""

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
    """p and q float32 behind no token (V,), one (V, V) and two (V, V, V)."""

    p: list[torch.Tensor]
    q: list[torch.Tensor]

    def law(self) -> torch.Tensor:
        """Of three tokens, float64 (V, V, V)."""
        first, second, third = (shares(p) for p in self.p)
        return first[:, None, None] * second[:, :, None] * third


def shares(weights: torch.Tensor) -> torch.Tensor:
    weights = weights.double()
    return weights / weights.sum(-1, keepdim=True)


def all_drafts(law: str, world: World, widths: tuple[int, int]):
    """Every tree: candidates of the root (M, w) and of those (M, w, u), and their probabilities (M,)."""
    first, chances = enumerate_candidates(DISTRIBUTIONS[law], world.q[0], widths[0])
    behind = {
        token: [x.tolist() for x in enumerate_candidates(DISTRIBUTIONS[law], world.q[1][token], widths[1])]
        for token in range(len(world.q[0]))
    }
    behind[NONE] = [[[NONE] * widths[1]], [1.0]]
    rows = []
    for own, chance in zip(first.tolist(), chances.tolist(), strict=True):
        for picks in itertools.product(*(zip(*behind[token], strict=True) for token in own)):
            weight = chance
            for _, share in picks:
                weight *= share
            rows.append((own, [draws for draws, _ in picks], weight))
    own, picks, weights = zip(*rows, strict=True)
    return torch.tensor(own), torch.tensor(picks), torch.tensor(weights, dtype=torch.float64)


def drafts_by_child(law: str, world: World, widths: tuple[int, int], most: int = 1 << 17) -> Iterator[tuple]:
    """All that may be drafted, for verifiers that go down a tree node by node: a path has one child of the
    root, so what it meets there hangs on the root's candidates and on that child's, not on its siblings'.

    So each of the root's tuples is met by each tuple of a child, whose siblings have the tuples of the same
    number. Yields, ``most`` trees at once, candidates as ``all_drafts``, and weights float64 (M, 1 + w): of
    what ends at the root, and of what ends at each child or behind it.
    """
    first, chances = enumerate_candidates(DISTRIBUTIONS[law], world.q[0], widths[0])
    found = [enumerate_candidates(DISTRIBUTIONS[law], q, widths[1]) for q in world.q[1]]
    count = max(len(own) for own, _ in found)
    behind = torch.full((len(found) + 1, count, widths[1]), NONE)
    shares = torch.zeros((len(found) + 1, count), dtype=torch.float64)  # the last line: of NONE
    for token, (own, weights) in enumerate(found):
        behind[token, : len(own)], shares[token, : len(own)] = own, weights
        behind[token, len(own) :] = own[-1]
    at_once = max(1, most // count)
    for own, weights in zip(first.split(at_once), chances.split(at_once), strict=True):
        of_child = shares[own].transpose(1, 2)  # (roots, count, w)
        every = torch.cat((torch.full_like(of_child[:, :, :1], 1 / count), of_child), 2)
        yield (own.repeat_interleave(count, 0), behind[own].transpose(1, 2).flatten(0, 1),
               (weights[:, None, None] * every).flatten(0, 1))


def some_drafts(law: str, world: World, widths: tuple[int, int], rows: int, rng: torch.Generator):
    """Candidates of the root (M, w) and of those (M, w, u), drawn."""
    def drawn(q, n):
        return sample_candidates(
            DISTRIBUTIONS[law], q, n, torch.rand((len(q), n), generator=rng, dtype=torch.float64)
        )

    first = drawn(world.q[0].expand(rows, -1), widths[0])
    second = drawn(world.q[1][first.flatten().clamp_min(0)], widths[1]).view(rows, *widths)
    return first, torch.where(first[:, :, None] == NONE, NONE, second)


def laid_out(world: World, first: torch.Tensor, second: torch.Tensor):
    """Trees of M rows, each with 1 + w + w u nodes of which some are not in use, their p and q (N, V)."""
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
    """The tokens above each node, and its own: depth (N,), first and second token (N,)."""
    size = 1 + wide + wide * deep
    place = torch.arange(size).repeat(rows)
    depth = (place > 0).long() + (place > wide).long()
    parent = torch.where(depth == 2, torch.arange(len(place)) - place + 1 + (place - 1 - wide) // deep, 0)
    first = torch.where(depth == 2, tree.tokens[parent], tree.tokens)
    return depth, first, tree.tokens


def law_of_three(world: World, tree: CandidateTrees, ends: torch.Tensor, chances: torch.Tensor, widths):
    """Law (V, V, V) of three tokens, where what is not emitted is drawn from p, and mean accepted tokens.

    chances float64 of the trees (M,), or (M, 1 + w) as ``drafts_by_child`` weighs them.
    """
    rows, tokens, (wide, deep) = len(chances), len(world.p[0]), widths
    depth, first, second = paths(tree, rows, *widths)
    if chances.dim() == 2:
        of = torch.arange(1, wide + 1)
        chances = torch.cat((chances, chances[:, of.repeat_interleave(deep)]), 1)
    else:
        chances = chances[:, None].expand(-1, len(ends) // rows)
    ends = ends * chances.reshape(-1, 1)
    none, one, two = (torch.zeros((tokens,) * k, dtype=torch.float64) for k in (1, 2, 3))
    none += ends[depth == 0].sum(0)
    one.index_put_((first[depth == 1],), ends[depth == 1], accumulate=True)
    two.index_put_((first[depth == 2], second[depth == 2]), ends[depth == 2], accumulate=True)
    one += none[:, None] * shares(world.p[1])
    two += one[:, :, None] * shares(world.p[2])
    return two, float((ends.sum(-1) * depth).sum())
