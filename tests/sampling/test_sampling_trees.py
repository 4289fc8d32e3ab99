"""Two-level trees: the three tokens after a root have the target distribution, whatever was drafted."""

import pytest
import torch
from draft_trees import enumerate_trees, flatten_trees, sample_trees, shares, three_token_distribution
from exact_trees import traversal_distribution, tree_distribution
from sampling_pairs import NODE_RULES, supports, worlds
from scipy.stats import chi2

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, NONE
from dare_job.decode.sampling.traversal import traverse
from dare_job.decode.sampling.verify import verify_trees
from dare_job.errors import ConfigError

ODDS = 1e-6  # false-alarm probability of one test, over random seeds
SIZES = ((2, (3, 2)), (3, (2, 2)), (4, (3, 1)), (6, (1, 1)), (4, (1, 2)))


@pytest.mark.fast_cases(14)
@pytest.mark.parametrize(
    ("rule", "distribution"), NODE_RULES + [(None, distribution) for distribution in DISTRIBUTIONS]
)
def test_three_token_distribution(rule, distribution):
    """Total variation at most 1e-12, node by node and by traversal (None)."""
    sizes = [(tokens, widths) for tokens, widths in SIZES if supports(rule, distribution, widths)]
    assert sizes
    for tokens, widths in sizes:
        for world in worlds(tokens):
            first, second, probabilities = enumerate_trees(distribution, world, widths)
            assert float(probabilities.sum()) == pytest.approx(1, abs=1e-12)
            tree, p, q = flatten_trees(world, first, second)
            ends = (
                tree_distribution(rule, distribution, tree, p, q)
                if rule
                else traversal_distribution(distribution, tree, p, q)
            )
            found, _ = three_token_distribution(world, tree, ends, probabilities, widths)
            assert float((found - world.joint()).abs().sum()) / 2 <= 1e-12


def test_traversal_accepts_no_less():
    """Than recursive rejection node by node, which it generalises to paths; and more on flat distributions.
    """
    for distribution in ("iid", "without_replacement", "distinct"):
        for at, world in enumerate(worlds(3)):
            first, second, probabilities = enumerate_trees(distribution, world, (2, 2))
            tree, p, q = flatten_trees(world, first, second)
            node_by_node, traversed = (
                three_token_distribution(world, tree, ends, probabilities, (2, 2))[1]
                for ends in (
                    tree_distribution("rrs", distribution, tree, p, q),
                    traversal_distribution(distribution, tree, p, q),
                )
            )
            assert traversed >= node_by_node + (0.01 if at == 0 else -1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "distribution"), NODE_RULES + [(None, distribution) for distribution in DISTRIBUTIONS]
)
def test_frequencies(rule, distribution):
    """G-test of path ends and the tokens after them against the enumeration."""
    tokens, rows = 3, 2000
    widths = (2, 2) if supports(rule, distribution, (2, 2)) else (1, 1)
    for seed, world in enumerate(worlds(tokens)):
        rng = torch.Generator().manual_seed(seed)
        first, second = sample_trees(distribution, world, widths, rows, rng)
        tree, p, q = flatten_trees(world, first, second)
        uniforms = torch.rand((len(p), 3), generator=rng, dtype=torch.float64)
        if rule:
            done, ends = (
                verify_trees(rule, distribution, tree, p, q, uniforms),
                tree_distribution(rule, distribution, tree, p, q),
            )
        else:
            done, ends = (
                traverse(distribution, tree, p, q, uniforms[:, :2]),
                traversal_distribution(distribution, tree, p, q),
            )
        assert (ends[done.nodes, done.token] > 0).all()
        kind = (done.nodes - tree.roots) * tokens + done.token
        counts = kind.bincount(minlength=len(p) // rows * tokens).double()
        assert _fits(counts, ends.view(rows, -1).sum(0))


def _fits(counts, expected) -> bool:
    """G-test."""
    rare = expected < 10
    counts = torch.cat((counts[~rare], counts[rare].sum()[None]))
    expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    used = counts > 0
    g = 2 * (counts[used] * (counts[used] / expected[used]).log()).sum()
    freedom = int((expected > 0).sum()) - 1
    return bool(g <= (1e-6 if freedom == 0 else chi2.isf(ODDS, freedom)))


def test_retrieved_text_is_accepted_with_probability_p():
    """Rule naive verifies retrieved rows, and does not depend on q."""
    world, rows = worlds(3)[0], 3000
    tree, p, _ = flatten_trees(world, torch.tensor([[2, 0]]).expand(rows, -1),
                               torch.tensor([[[1, 2], [0, 1]]]).expand(rows, -1, -1))
    uniforms = torch.rand((len(p), 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    done = verify_trees("naive", "top_k", tree, p, p, uniforms)
    first = shares(world.p[0])
    accepted = torch.stack([((done.nodes - tree.roots) == place).sum() for place in range(7)]).double()
    deeper = shares(world.p[1])
    expected = torch.stack([first[1], first[2] * deeper[2, 0], first[0] * deeper[0, 2],
                            first[2] * deeper[2, 1], first[2] * deeper[2, 2], *(first[0] * deeper[0, :2])])
    assert _fits(accepted, expected * rows)


def test_shared_nodes_and_nonfinite_values():
    """Traversal rejects nodes shared by two candidates; non-finite probabilities emit nothing."""
    world = worlds(3)[0]
    first, second = torch.tensor([[1, 1]]), torch.tensor([[[0, 2], [1, 2]]])
    tree, p, q = flatten_trees(world, first, second)
    uniforms = torch.full((len(p), 3), 1 - 2**-53, dtype=torch.float64)
    shared = tree._replace(children=torch.where(tree.children == 2, 1, tree.children))
    with pytest.raises(ConfigError, match="node 1 holds two candidates"):
        traverse("iid", shared, p, q, uniforms)
    assert verify_trees("rrs", "iid", shared, p, q, uniforms).token >= 0
    p[0] = torch.nan
    for done in (verify_trees("rrs", "iid", tree, p, q, uniforms), traverse("iid", tree, p, q, uniforms)):
        assert done.nodes.tolist() == [0] and done.token.tolist() == [NONE]
