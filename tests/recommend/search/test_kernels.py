"""The laws of verified samples, by enumeration: the exact kernel to rounding, the published one far from
it.
"""

import enumerated
import numpy as np
import pytest
import torch

from dare_job.decode.beam.top_k.kernels import exact, relaxed
from dare_job.decode.sampling.seeds import DRAFT
from dare_job.decode.sampling.steps import normalised

ROW = np.zeros(1, np.int64)


def law_of(kernel, p, q, n: int, k: int) -> dict:
    nodes = torch.arange(len(p))[None]
    p, q = normalised(p[None]), normalised(q[None])

    def run(chance):
        drafts = chance.order(ROW, nodes, q, torch.tensor([n]), DRAFT)
        return tuple(x for x in kernel(p, q, drafts, k, chance, ROW, nodes)[0].tolist() if x >= 0)

    return enumerated.law(run)


def pair(seed: int, size: int = 4, zeros: bool = False):
    chance = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, size, generator=chance, dtype=torch.float64) ** 2
    if zeros:
        p[0], q[-1] = 0, 0
    return p, q


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("n", "k"), [(0, 2), (1, 1), (2, 1), (2, 2), (3, 2), (1, 3), (3, 3)])
def test_the_exact_kernel_has_the_law_of_the_target(n, k, zeros):
    for seed in range(3):
        p, q = pair(seed, zeros=zeros)
        found = law_of(exact, p, q, n, k)
        assert sum(found.values()) == pytest.approx(1, abs=1e-12)
        assert enumerated.distance(found, enumerated.without_replacement(p, k)) < 1e-12


def test_equal_laws_accept_every_draft():
    p, _ = pair(0)
    found = law_of(exact, p, p, 4, 2)
    assert enumerated.distance(found, enumerated.without_replacement(p, 2)) < 1e-12


def test_the_published_rule_does_not_have_the_law_of_the_target():
    """Which is why lists that it makes are labelled lossy."""
    far = []
    for seed in range(6):
        p, q = pair(seed)
        found = law_of(relaxed, p, q, 3, 2)
        assert sum(found.values()) == pytest.approx(1, abs=1e-12)
        far.append(enumerated.distance(_sets(found), _sets(enumerated.without_replacement(p, 2))))
    assert max(far) > 0.1


def _sets(law: dict) -> dict:
    found: dict = {}
    for outputs, weight in law.items():
        key = tuple(sorted(outputs))
        found[key] = found.get(key, 0) + weight
    return found


def test_a_draft_law_that_is_not_the_drafts_own_is_caught():
    """The law that drafts were drawn by has to be the kernel's: uniform drafts are none of q."""
    p, q = pair(1)
    nodes = torch.arange(4)[None]

    def run(chance):
        drafts = chance.order(ROW, nodes, torch.ones(1, 4, dtype=torch.float64), torch.tensor([2]), DRAFT)
        laws = normalised(p[None]), normalised(q[None])
        return tuple(exact(*laws, drafts, 2, chance, ROW, nodes)[0].tolist())

    assert enumerated.distance(enumerated.law(run), enumerated.without_replacement(p, 2)) > 0.02
