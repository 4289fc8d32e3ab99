"""Distributions of verified samples, by enumeration: the exact one to rounding, the published one far from
it.
"""

import enumerated
import numpy as np
import pytest
import torch

from dare_job.decode.sampling.random_streams import DRAFT
from dare_job.decode.sampling.rules import normalised
from dare_job.decode.trie_search.verification import exact, relaxed

ROW = np.zeros(1, np.int64)


def outputs_of(verify, p, q, n: int, k: int) -> dict:
    nodes = torch.arange(len(p))[None]
    p, q = normalised(p[None]), normalised(q[None])

    def run(randomness):
        drafts = randomness.sample_order(ROW, nodes, q, torch.tensor([n]), DRAFT)
        return tuple(x for x in verify(p, q, drafts, k, randomness, ROW, nodes)[0][0].tolist() if x >= 0)

    return enumerated.distribution(run)


def pair(seed: int, size: int = 4, zeros: bool = False):
    randomness = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, size, generator=randomness, dtype=torch.float64) ** 2
    if zeros:
        p[0], q[-1] = 0, 0
    return p, q


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("n", "k"), [(0, 2), (1, 1), (2, 1), (2, 2), (3, 2), (1, 3), (3, 3)])
def test_exact_verification_has_the_target_distribution(n, k, zeros):
    for seed in range(3):
        p, q = pair(seed, zeros=zeros)
        found = outputs_of(exact, p, q, n, k)
        assert sum(found.values()) == pytest.approx(1, abs=1e-12)
        assert enumerated.distance(found, enumerated.without_replacement(p, k)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("few", [False, True])
def test_the_published_rule_ends_a_draft_with_too_few_accepted(few):
    """Unless everything available was accepted; the exact rule continues wherever nodes were read."""
    p, q = (normalised(one[None]) for one in pair(2, size=5))
    if few:
        p = normalised(p * torch.tensor([1, 1, 0, 0, 0]))
    nodes, seen = torch.arange(5)[None], set()

    def run(randomness):
        drafts = randomness.sample_order(ROW, nodes, q, torch.tensor([3]), DRAFT)
        passed = []
        accept, randomness.accept = (
            randomness.accept,
            lambda *asked: passed.append(accept(*asked)) or passed[-1],
        )
        _, through = relaxed(p, q, drafts, 3, randomness, ROW, nodes)
        accepted = sum(bool(one[0]) for one in passed)
        assert bool(through[0]) == (accepted >= (2 if few else 3))
        seen.add(bool(through[0]))
        assert exact(p, q, drafts, 3, enumerated.FollowedPath([0] * 20), ROW, nodes)[1].all()
        for some in (drafts[:, :0], drafts * 0 - 1):  # nothing was drafted; all drafts were discarded
            assert relaxed(p, q * 0, some, 3, enumerated.FollowedPath([0] * 20), ROW, nodes)[1].all()
            assert not relaxed(p, q, some, 1, enumerated.FollowedPath([0] * 20), ROW, nodes)[1].any()

    enumerated.distribution(run)
    assert seen == {True, False}


def test_equal_distributions_accept_every_draft():
    p, _ = pair(0)
    found = outputs_of(exact, p, p, 4, 2)
    assert enumerated.distance(found, enumerated.without_replacement(p, 2)) < 1e-12


def test_the_published_rule_changes_the_distribution():
    """Therefore its recommendations are labelled lossy."""
    far = []
    for seed in range(6):
        p, q = pair(seed)
        found = outputs_of(relaxed, p, q, 3, 2)
        assert sum(found.values()) == pytest.approx(1, abs=1e-12)
        far.append(enumerated.distance(_sets(found), _sets(enumerated.without_replacement(p, 2))))
    assert max(far) > 0.1


def _sets(distribution: dict) -> dict:
    found: dict = {}
    for outputs, weight in distribution.items():
        key = tuple(sorted(outputs))
        found[key] = found.get(key, 0) + weight
    return found


def test_a_wrong_draft_distribution_is_detected():
    """Verification needs the distribution that sampled the drafts: uniform drafts are not from q."""
    p, q = pair(1)
    nodes = torch.arange(4)[None]

    def run(randomness):
        drafts = randomness.sample_order(
            ROW, nodes, torch.ones(1, 4, dtype=torch.float64), torch.tensor([2]), DRAFT
        )
        p_and_q = normalised(p[None]), normalised(q[None])
        return tuple(exact(*p_and_q, drafts, 2, randomness, ROW, nodes)[0][0].tolist())

    assert enumerated.distance(enumerated.distribution(run), enumerated.without_replacement(p, 2)) > 0.02
