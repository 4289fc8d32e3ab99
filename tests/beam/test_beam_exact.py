"""Outputs of two layers have the distribution of beam sampling, by enumeration; wrong treatments are
detected.
"""

from itertools import product

import pytest
import torch
from two_layers import (
    DISTRIBUTION_NAMES,
    World,
    counted,
    distance,
    dropped,
    dropped_as_it_is,
    renormalised_and_counted,
    table_of,
)

from dare_job.decode.beam.verification import complete, verify
from dare_job.decode.settings import Warp

EXACT = 1e-12
PAIRS = list(product(DISTRIBUTION_NAMES, DISTRIBUTION_NAMES))


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("treat", [dropped, counted])
@pytest.mark.parametrize(("outputs", "draft_distribution"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_two_layers(outputs, draft_distribution, treat):
    """Every pair of output and draft distribution, with two treatments of drafts under a rejected parent."""
    for seed, n, wide in ((0, 2, 1), (1, 3, 2), (2, 2, 2)):
        table, should, reached, first = table_of(World(2, seed), n, outputs, draft_distribution, treat, wide)
        assert abs(table.sum() - 1) < EXACT
        assert distance(reached, first) < EXACT
        assert distance(table, should) < EXACT


@pytest.mark.parametrize(("outputs", "draft_distribution"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_dynamic_width(outputs, draft_distribution):
    """A width that depends on p and q leaves the distribution unchanged, given the width."""
    table, should, reached, first = table_of(
        World(2, 3, 0.4), 2, outputs, draft_distribution, min_width=1, threshold=0.6
    )
    assert distance(reached, first) < EXACT and distance(table, should) < EXACT
    assert (table.flatten(1).sum(-1) > 0.01).sum() >= 2  # both widths occur


@pytest.mark.parametrize("settings", [Warp(0.7), Warp(top_k=3), Warp(top_p=0.8)], ids=["t", "k", "p"])
def test_warped(settings):
    """p and q are warped alike, over pairs of a beam and a token."""
    for outputs, draft_distribution in PAIRS:
        table, should, reached, first = table_of(
            World(2, 5, settings=settings), 2, outputs, draft_distribution
        )
        assert distance(reached, first) < EXACT and distance(table, should) < EXACT


@pytest.mark.parametrize("treat", [renormalised_and_counted, dropped_as_it_is])
def test_half_mixed_treatments_are_detected(treat):
    """The error is percents, where a correct treatment is right to 1e-12."""
    off = [distance(*table_of(World(2, seed, apart=2.0), n, outputs, draft_distribution, treat, wide)[:2])
           for seed, n, wide in ((0, 2, 1), (1, 3, 2), (2, 2, 1)) for outputs, draft_distribution in PAIRS]
    assert max(off) > 0.05 and sum(x > 0.005 for x in off) > len(off) / 2


@pytest.mark.parametrize(("assumed", "draft_distribution"), [DISTRIBUTION_NAMES, DISTRIBUTION_NAMES[::-1]])
def test_wrong_draft_distribution_is_detected(assumed, draft_distribution):
    table, should, reached, first = table_of(World(2, 1), 3, "iid", draft_distribution, assumed=assumed)
    assert distance(reached, first) > 0.001


def test_fewer_outcomes_than_outputs():
    """The places beyond the support stay empty."""
    p = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64)
    drafts = torch.tensor([[1, -1]])
    zeros, half, three = torch.zeros(1, 2).double(), torch.full((1, 3), 0.5).double(), torch.tensor([3])
    verified = verify(p, p, drafts, zeros, three, "without_replacement", "iid")
    found = complete(p, verified, drafts, half, three, "without_replacement")
    assert found.tolist() == [[1, 0, -1]]
