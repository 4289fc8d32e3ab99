"""Two levels of up to four candidates over up to six tokens: the output has the target distribution, exactly.
"""

import pytest
import torch
from draft_trees import enumerate_by_child, enumerate_trees, flatten_trees, three_token_distribution
from exact_trees import traversal_distribution, tree_distribution
from sampling_pairs import NODE_RULES, supports, worlds

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, NONE, enumerate_candidates

# For traversal, where siblings interact, all trees are enumerated jointly. 4x4 over 4 tokens would have eight
# million trees without replacement, over 6 tokens six trillion. Worlds with part than MAX_TREES are left out;
# at least two remain.
JOINT = ((2, (4, 2)), (3, (4, 4)), (4, (3, 2)), (4, (2, 4)), (6, (3, 1)), (6, (2, 2)), (6, (1, 4)))
JOINT_OF = {"iid": ((2, (4, 2)), (3, (4, 1)), (3, (2, 3)), (6, (3, 1)), (6, (1, 4))),
            "spechub": ((6, (2, 2)),)}
MAX_TREES = 28_000
MORE = ((6, (4, 4)), (5, (4, 2)), (5, (2, 4)), (4, (3, 3)), (6, (2, 2)), (6, (1, 1)))


def cases(*sizes):
    """Return every rule and distribution with the sizes (tokens, widths) that it supports."""
    found = [(*pair, *size) for pair in NODE_RULES for size in sizes if supports(*pair, size[1])]
    assert {pair[:2] for pair in found} == set(NODE_RULES)
    return found


def distance(found, world):
    return float((found - world.joint()).abs().sum()) / 2


def by_child(rule, distribution, world, widths, max_trees=1 << 17):
    """Return the distribution of three tokens and the accepted tokens, by ``enumerate_by_child``."""
    emitted, accepted = 0, 0
    for first, second, weights in enumerate_by_child(distribution, world, widths, max_trees):
        tree, p, q = flatten_trees(world, first, second)
        part, accepted_tokens = three_token_distribution(
            world, tree, tree_distribution(rule, distribution, tree, p, q), weights, widths
        )
        emitted, accepted = emitted + part, accepted + accepted_tokens
    return emitted, accepted


def level_by_level(rule, distribution, world, widths):
    """Return the distribution of three tokens, enumerating the root's tuples and then all tuples after each
    token.

    What follows a token depends only on the token and its own tuple, once the path has reached it.
    """
    (wide, deep), (first, probabilities) = (
        widths,
        enumerate_candidates(DISTRIBUTIONS[distribution], world.q[0], widths[0]),
    )
    second_level = [enumerate_candidates(DISTRIBUTIONS[distribution], q, deep) for q in world.q[1]]
    usual = torch.stack(
        [own[0] for own, _ in second_level] + [torch.full((deep,), NONE)]
    )  # the last: of NONE
    ends, tree = verified_ends(rule, distribution, world, first, usual[first])
    emitted, _ = three_token_distribution(world, tree, ends, weights(probabilities, 0, wide), widths)
    size = ends.sum(-1).view(len(first), -1)
    reach = size[:, 1 : 1 + wide] + size[:, 1 + wide :].view(len(first), wide, deep).sum(-1)  # (M, w)
    for token, (own, shares) in enumerate(second_level):
        here = torch.where(first == token, reach, 0)
        best, total = int(here.argmax()), float((probabilities[:, None] * here).sum())
        if total == 0:
            continue
        row, place = divmod(best, wide)
        second = usual[first[row]].repeat(len(own), 1, 1)
        second[:, place] = own
        ends, tree = verified_ends(rule, distribution, world, first[row].expand(len(own), -1), second)
        share = weights(shares * total / reach[row, place], 1 + place, wide)
        emitted = emitted + three_token_distribution(world, tree, ends, share, widths)[0]
    return emitted


def verified_ends(rule, distribution, world, first, second):
    tree, p, q = flatten_trees(world, first, second)
    return tree_distribution(rule, distribution, tree, p, q), tree


def weights(probabilities, column, wide):
    """Return weights of trees of which one part counts: paths that end at the root, or at or below one child.
    """
    found = torch.zeros((len(probabilities), 1 + wide), dtype=torch.float64)
    found[:, column] = probabilities
    return found


@pytest.mark.fast_cases(28)
@pytest.mark.parametrize(
    ("rule", "distribution", "tokens", "widths"), cases((3, (4, 4)), (4, (2, 2)), (6, (1, 1)))
)
def test_by_child_enumeration(rule, distribution, tokens, widths):
    for world in worlds(tokens)[: 1 if rule == "priority" else None]:
        assert distance(by_child(rule, distribution, world, widths)[0], world) <= 1e-12


@pytest.mark.parametrize(
    ("rule", "distribution"), [pair for pair in NODE_RULES if supports(*pair, (4, 4)) and pair[1] != "iid"]
)  # 1296 tuples: slow
def test_two_levels_of_four_candidates_of_six_tokens(rule, distribution):
    world = worlds(6)[1]
    assert distance(level_by_level(rule, distribution, world, (4, 4)), world) <= 1e-12


@pytest.mark.release
@pytest.mark.parametrize(("rule", "distribution", "tokens", "widths"), cases(*MORE))
def test_more_sizes(rule, distribution, tokens, widths):
    for world in worlds(tokens):
        assert distance(level_by_level(rule, distribution, world, widths), world) <= 1e-12


@pytest.mark.fast_cases(20)
@pytest.mark.parametrize(("rule", "distribution", "tokens", "widths"), cases((3, (2, 2)), (3, (1, 1))))
def test_enumerations_agree(rule, distribution, tokens, widths):
    """The joint enumeration of all trees, the enumeration by child and level by level give the same
    distribution.
    """
    for world in worlds(tokens):
        first, second, probabilities = enumerate_trees(distribution, world, widths)
        ends, tree = verified_ends(rule, distribution, world, first, second)
        whole, accepted = three_token_distribution(world, tree, ends, probabilities, widths)
        some, accepted_tokens = by_child(rule, distribution, world, widths, max_trees=20)
        assert accepted_tokens == pytest.approx(accepted, abs=1e-12)
        assert torch.allclose(some, whole, rtol=0, atol=1e-13)
        assert torch.allclose(level_by_level(rule, distribution, world, widths), whole, rtol=0, atol=1e-13)


@pytest.mark.release
@pytest.mark.parametrize(
    ("distribution", "tokens", "widths"),
    [(distribution, *size) for distribution in DISTRIBUTIONS for size in JOINT_OF.get(distribution, JOINT)],
)
def test_all_trees_by_traversal(distribution, tokens, widths):
    few = [world for world in worlds(tokens) if _trees(distribution, world, widths) <= MAX_TREES]
    assert supports(None, distribution, widths) and len(few) >= 2
    for world in few:
        first, second, probabilities = enumerate_trees(distribution, world, widths)
        tree, p, q = flatten_trees(world, first, second)
        found, _ = three_token_distribution(
            world, tree, traversal_distribution(distribution, tree, p, q), probabilities, widths
        )
        assert distance(found, world) <= 1e-12


def _trees(distribution, world, widths) -> int:
    """Return an upper bound on the number of trees."""
    first, second_level = (len(enumerate_candidates(DISTRIBUTIONS[distribution], q, n)[0]) for q, n in (
        (world.q[0], widths[0]), (world.q[1].mean(0), widths[1])))
    return first * second_level ** widths[0]
