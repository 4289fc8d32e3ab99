"""Trees of two levels: the three tokens behind a root have the target's law, whatever was drafted."""

import pytest
import torch
from draft_trees import all_drafts, laid_out, law_of_three, shares, some_drafts
from sampling_pairs import NODE_RULES, takes, worlds
from scipy.stats import chi2

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, NONE
from dare_job.decode.sampling.traversal import traversal_distribution, traverse
from dare_job.decode.sampling.verify import tree_distribution, verify_trees
from dare_job.errors import ConfigError

ODDS = 1e-6  # of a false alarm of one test, had its seed not been fixed
SIZES = ((2, (3, 2)), (3, (2, 2)), (4, (3, 1)), (6, (1, 1)), (4, (1, 2)))


@pytest.mark.parametrize(("rule", "law"), NODE_RULES + [(None, law) for law in DISTRIBUTIONS])
def test_law_of_three(rule, law):
    """Total variation at most 1e-12, node by node and by traversal (None)."""
    sizes = [(tokens, widths) for tokens, widths in SIZES if takes(rule, law, widths)]
    assert sizes
    for tokens, widths in sizes:
        for world in worlds(tokens):
            first, second, chances = all_drafts(law, world, widths)
            assert float(chances.sum()) == pytest.approx(1, abs=1e-12)
            tree, p, q = laid_out(world, first, second)
            ends = (
                tree_distribution(rule, law, tree, p, q) if rule else traversal_distribution(law, tree, p, q)
            )
            found, _ = law_of_three(world, tree, ends, chances, widths)
            assert float((found - world.law()).abs().sum()) / 2 <= 1e-12


def test_traversal_accepts_no_less():
    """Than recursive rejection node by node, of which it is the form for whole paths; more on flat laws."""
    for law in ("iid", "without_replacement", "distinct"):
        for at, world in enumerate(worlds(3)):
            first, second, chances = all_drafts(law, world, (2, 2))
            tree, p, q = laid_out(world, first, second)
            walked, traversed = (law_of_three(world, tree, ends, chances, (2, 2))[1] for ends in (
                tree_distribution("rrs", law, tree, p, q), traversal_distribution(law, tree, p, q)))
            assert traversed >= walked + (0.01 if at == 0 else -1e-12)


@pytest.mark.parametrize(("rule", "law"), NODE_RULES + [(None, law) for law in DISTRIBUTIONS])
def test_frequencies(rule, law):
    """Of the nodes where paths end and the tokens behind, by a G-test against what was enumerated."""
    tokens, rows = 3, 3000
    widths = (2, 2) if takes(rule, law, (2, 2)) else (1, 1)
    for seed, world in enumerate(worlds(tokens)):
        rng = torch.Generator().manual_seed(seed)
        first, second = some_drafts(law, world, widths, rows, rng)
        tree, p, q = laid_out(world, first, second)
        uniforms = torch.rand((len(p), 3), generator=rng, dtype=torch.float64)
        if rule:
            done, ends = (
                verify_trees(rule, law, tree, p, q, uniforms),
                tree_distribution(rule, law, tree, p, q),
            )
        else:
            done, ends = traverse(law, tree, p, q, uniforms[:, :2]), traversal_distribution(law, tree, p, q)
        assert (ends[done.nodes, done.token] > 0).all()
        kind = (done.nodes - tree.roots) * tokens + done.token
        counts = kind.bincount(minlength=len(p) // rows * tokens).double()
        _g_test(counts, ends.view(rows, -1).sum(0))


def _g_test(counts, expected):
    rare = expected < 10
    counts = torch.cat((counts[~rare], counts[rare].sum()[None]))
    expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    used = counts > 0
    g = 2 * (counts[used] * (counts[used] / expected[used]).log()).sum()
    freedom = int((expected > 0).sum()) - 1
    assert g <= (1e-6 if freedom == 0 else chi2.isf(ODDS, freedom))


def test_text_that_was_found():
    """Rows of retrieved text are judged without q, by the rule naive alone: as often as p has them."""
    world, rows = worlds(3)[0], 3000
    tree, p, _ = laid_out(world, torch.tensor([[2, 0]]).expand(rows, -1),
                          torch.tensor([[[1, 2], [0, 1]]]).expand(rows, -1, -1))
    uniforms = torch.rand((len(p), 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    done = verify_trees("naive", "top_k", tree, p, None, uniforms)
    first = shares(world.p[0])
    taken = torch.stack([((done.nodes - tree.roots) == place).sum() for place in range(7)]).double()
    deeper = shares(world.p[1])
    expected = torch.stack([first[1], first[2] * deeper[2, 0], first[0] * deeper[0, 2],
                            first[2] * deeper[2, 1], first[2] * deeper[2, 2], *(first[0] * deeper[0, :2])])
    _g_test(taken, expected * rows)
    with pytest.raises(ConfigError, match="rule 'rrs' needs the draft probabilities"):
        verify_trees("rrs", "top_k", tree, p, None, uniforms)


def test_bad_trees():
    """Nodes that stand for two draws are refused by traversal, numbers that are none emit nothing."""
    world = worlds(3)[0]
    first, second = torch.tensor([[1, 1]]), torch.tensor([[[0, 2], [1, 2]]])
    tree, p, q = laid_out(world, first, second)
    uniforms = torch.full((len(p), 3), 1 - 2**-53, dtype=torch.float64)
    shared = tree._replace(children=torch.where(tree.children == 2, 1, tree.children))
    with pytest.raises(ConfigError, match="node 1 holds two candidates"):
        traverse("iid", shared, p, q, uniforms)
    assert verify_trees("rrs", "iid", shared, p, q, uniforms).token >= 0
    p[0] = torch.nan
    for done in (verify_trees("rrs", "iid", tree, p, q, uniforms), traverse("iid", tree, p, q, uniforms)):
        assert done.nodes.tolist() == [0] and done.token.tolist() == [NONE]
