"""Two levels with up to four candidates each over up to six tokens: what is written has the target's law."""

import pytest
import torch
from draft_trees import all_drafts, drafts_by_child, laid_out, law_of_three
from sampling_pairs import NODE_RULES, takes, worlds

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, NONE, enumerate_candidates
from dare_job.decode.sampling.traversal import traversal_distribution
from dare_job.decode.sampling.verify import tree_distribution

# Of the traversal, in which siblings matter to each other, all trees are enumerated together. Of 4x4 over 4
# tokens there would be eight million without replacement, over 6 tokens six million millions.
# A world with more than MOST_TREES is left out; two at the least are not.
JOINT = ((2, (4, 2)), (3, (4, 4)), (4, (3, 2)), (4, (2, 4)), (6, (3, 1)), (6, (2, 2)), (6, (1, 4)))
JOINT_OF = {"iid": ((2, (4, 2)), (3, (4, 1)), (3, (2, 3)), (6, (3, 1)), (6, (1, 4))),
            "spechub": ((6, (2, 2)),)}
MOST_TREES = 28_000
MORE = ((6, (4, 4)), (5, (4, 2)), (5, (2, 4)), (4, (3, 3)), (6, (2, 2)), (6, (1, 1)))


def cases(*sizes):
    """Every rule and law with those of these sizes, (tokens, widths), that it takes."""
    found = [(*pair, *size) for pair in NODE_RULES for size in sizes if takes(*pair, size[1])]
    assert {pair[:2] for pair in found} == set(NODE_RULES)
    return found


def distance(found, world):
    return float((found - world.law()).abs().sum()) / 2


def by_child(rule, law, world, widths, most=1 << 17):
    """Law of three tokens, and how many are accepted: each child's tuples behind each of the root's."""
    law_of, accepted = 0, 0
    for first, second, weights in drafts_by_child(law, world, widths, most):
        tree, p, q = laid_out(world, first, second)
        more, taken = law_of_three(world, tree, tree_distribution(rule, law, tree, p, q), weights, widths)
        law_of, accepted = law_of + more, accepted + taken
    return law_of, accepted


def in_turn(rule, law, world, widths):
    """The same of all of the root's tuples, and then of all tuples behind each token: what is behind it hangs
    on the token and its own tuple alone, once the path is there.
    """
    (wide, deep), (first, chances) = widths, enumerate_candidates(DISTRIBUTIONS[law], world.q[0], widths[0])
    behind = [enumerate_candidates(DISTRIBUTIONS[law], q, deep) for q in world.q[1]]
    usual = torch.stack([own[0] for own, _ in behind] + [torch.full((deep,), NONE)])  # the last: of NONE
    ends, tree = walked(rule, law, world, first, usual[first])
    law_of, _ = law_of_three(world, tree, ends, weights(chances, 0, wide), widths)
    size = ends.sum(-1).view(len(first), -1)
    reach = size[:, 1 : 1 + wide] + size[:, 1 + wide :].view(len(first), wide, deep).sum(-1)  # (M, w)
    for token, (own, shares) in enumerate(behind):
        here = torch.where(first == token, reach, 0)
        best, total = int(here.argmax()), float((chances[:, None] * here).sum())
        if total == 0:
            continue
        row, place = divmod(best, wide)
        second = usual[first[row]].repeat(len(own), 1, 1)
        second[:, place] = own
        ends, tree = walked(rule, law, world, first[row].expand(len(own), -1), second)
        share = weights(shares * total / reach[row, place], 1 + place, wide)
        law_of = law_of + law_of_three(world, tree, ends, share, widths)[0]
    return law_of


def walked(rule, law, world, first, second):
    tree, p, q = laid_out(world, first, second)
    return tree_distribution(rule, law, tree, p, q), tree


def weights(chances, column, wide):
    """Of trees, where but one part of each counts: the root's ends, or those of a child and behind it."""
    found = torch.zeros((len(chances), 1 + wide), dtype=torch.float64)
    found[:, column] = chances
    return found


@pytest.mark.parametrize(("rule", "law", "tokens", "widths"), cases((3, (4, 4)), (4, (2, 2)), (6, (1, 1))))
def test_each_tuple_of_a_child_behind_each_of_the_root(rule, law, tokens, widths):
    for world in worlds(tokens)[: 1 if rule == "priority" else None]:
        assert distance(by_child(rule, law, world, widths)[0], world) <= 1e-12


@pytest.mark.parametrize(("rule", "law"), [pair for pair in NODE_RULES
                                           if takes(*pair, (4, 4)) and pair[1] != "iid"])  # 1296 tuples: slow
def test_four_candidates_twice_of_six_tokens(rule, law):
    world = worlds(6)[1]
    assert distance(in_turn(rule, law, world, (4, 4)), world) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "law", "tokens", "widths"), cases(*MORE))
def test_more_sizes(rule, law, tokens, widths):
    for world in worlds(tokens):
        assert distance(in_turn(rule, law, world, widths), world) <= 1e-12


@pytest.mark.parametrize(("rule", "law", "tokens", "widths"), cases((3, (2, 2)), (3, (1, 1))))
def test_ways_of_enumerating_agree(rule, law, tokens, widths):
    """Where all trees can be had, so do each child's tuples behind each of the root's, and both in turn."""
    for world in worlds(tokens):
        first, second, chances = all_drafts(law, world, widths)
        ends, tree = walked(rule, law, world, first, second)
        whole, accepted = law_of_three(world, tree, ends, chances, widths)
        some, taken = by_child(rule, law, world, widths, most=20)
        assert taken == pytest.approx(accepted, abs=1e-12)
        assert torch.allclose(some, whole, rtol=0, atol=1e-13)
        assert torch.allclose(in_turn(rule, law, world, widths), whole, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(("law", "tokens", "widths"),
                         [(law, *size) for law in DISTRIBUTIONS for size in JOINT_OF.get(law, JOINT)])
def test_all_trees_by_traversal(law, tokens, widths):
    few = [world for world in worlds(tokens) if _trees(law, world, widths) <= MOST_TREES]
    assert takes(None, law, widths) and len(few) >= 2
    for world in few:
        first, second, chances = all_drafts(law, world, widths)
        tree, p, q = laid_out(world, first, second)
        found, _ = law_of_three(world, tree, traversal_distribution(law, tree, p, q), chances, widths)
        assert distance(found, world) <= 1e-12


def _trees(law, world, widths) -> int:
    """How many may be drafted, at most."""
    first, behind = (len(enumerate_candidates(DISTRIBUTIONS[law], q, n)[0]) for q, n in (
        (world.q[0], widths[0]), (world.q[1].mean(0), widths[1])))
    return first * behind ** widths[0]
