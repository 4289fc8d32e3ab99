"""Two levels with up to four candidates each over up to six tokens: what is written has the target's law."""

import pytest
import torch
from sampling_pairs import NODE_RULES, worlds

from dare_job.bench.acceptance_trees import all_drafts, drafts_by_child, laid_out, law_of_three
from dare_job.decode.sampling import LAWS, RULES, enumerate_draws, law_of_traversal, law_of_walk

# Joint enumerations of the traversal, in which siblings matter to each other: 4x4 over 4 tokens would be
# eight million trees without replacement, over 6 tokens six million millions.
JOINT = ((6, (4, 1)), (3, (4, 4)), (4, (3, 4)), (4, (4, 2)), (5, (2, 4)), (6, (2, 3)), (6, (1, 4)))
MOST_TREES = 600_000


@pytest.mark.parametrize(("rule", "law"), NODE_RULES)
@pytest.mark.parametrize(("tokens", "widths"), [
    (3, (4, 4)), (4, (2, 2)), *(pytest.param(tokens, (wide, deep), marks=pytest.mark.slow)
                                for tokens in (4, 5, 6) for wide, deep in ((4, 4), (4, 2), (2, 4), (2, 2)))])
def test_law_of_three_node_by_node(rule, law, tokens, widths):
    """The same with up to four candidates on both levels, over up to six tokens, whatever is drafted."""
    only = LAWS[law].only or RULES[rule].only
    if only not in (None, *widths) or (only and widths[0] != widths[1]):
        pytest.skip(f"{law}, {rule}: {only} candidates alone")
    for world in worlds(tokens)[: 2 if law == "iid" and tokens == 6 else None]:
        found, total = 0, 0
        for first, second, weights in drafts_by_child(law, world, widths):
            tree, p, q = laid_out(world, first, second)
            more, _ = law_of_three(world, tree, law_of_walk(rule, law, tree, p, q), weights, widths)
            found, total = found + more, total + float(weights[:, 0].sum())
        assert total == pytest.approx(1, abs=1e-12)
        assert float((found - world.law()).abs().sum()) / 2 <= 1e-12


@pytest.mark.parametrize(("rule", "law"), NODE_RULES)
def test_one_child_at_a_time_is_all_trees(rule, law):
    """Where both can be had, the enumeration by child and that of all trees weigh every end alike."""
    widths = (2, 2)
    for world in worlds(3):
        first, second, chances = all_drafts(law, world, widths)
        tree, p, q = laid_out(world, first, second)
        whole, accepted = law_of_three(world, tree, law_of_walk(rule, law, tree, p, q), chances, widths)
        parts = []
        for first, second, weights in drafts_by_child(law, world, widths, most=20):
            tree, p, q = laid_out(world, first, second)
            parts.append(law_of_three(world, tree, law_of_walk(rule, law, tree, p, q), weights, widths))
        assert sum(part for _, part in parts) == pytest.approx(accepted, abs=1e-12)
        assert torch.allclose(sum(part for part, _ in parts), whole, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("tokens", "widths"), JOINT)
def test_law_of_three_by_traversal(law, tokens, widths):
    only = LAWS[law].only
    if only not in (None, *widths) or (only and widths[0] != widths[1]):
        pytest.skip(f"{law}: {only} candidates alone")
    for world in worlds(tokens):
        if _trees(law, world, widths) > MOST_TREES:
            continue
        first, second, chances = all_drafts(law, world, widths)
        tree, p, q = laid_out(world, first, second)
        found, _ = law_of_three(world, tree, law_of_traversal(law, tree, p, q), chances, widths)
        assert float((found - world.law()).abs().sum()) / 2 <= 1e-12


def _trees(law, world, widths) -> int:
    """How many may be drafted, at most."""
    first, behind = (len(enumerate_draws(LAWS[law], q, n)[0]) for q, n in (
        (world.q[0], widths[0]), (world.q[1].mean(0), widths[1])))
    return first * behind ** widths[0]
