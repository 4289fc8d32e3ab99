"""Each loss and its gradient against plain loops over toy vocabularies, and against numeric differences."""

import itertools
import math

import pytest
import torch

from dare_job.training.align import objective

CODES, REST = 5, 2  # codes of the level, other tokens of the vocabulary


def _distributions(seed, places=4):
    """Logits with gradients, log q and log p of the level's codes, p_K, and valid codes, one at least."""
    draw = torch.Generator().manual_seed(seed)
    logits = (2 * torch.randn(places, CODES + REST, generator=draw, dtype=torch.float64)).requires_grad_()
    log_p = (2 * torch.randn(places, CODES + REST, generator=draw, dtype=torch.float64)).log_softmax(-1)
    valid = torch.rand(places, CODES, generator=draw) < 0.6
    valid[:, 0] = True
    return logits, logits.log_softmax(-1)[:, :CODES], log_p[:, :CODES], log_p[:, 3] - 0.7, valid


def _best(values, valid, k):
    return sorted((c for c in range(CODES) if valid[c]), key=lambda c: -values[c].item())[:k]


def _strict(q, p, p_k, valid, k, density):
    return sum(q[c] * torch.log(q[c] / p[c]) - density * q[c] * torch.log(q[c] / p_k)
               for c in _best(q, valid, k))


def _relaxed(q, p, valid, k):
    kept = _best(p, valid, k)
    sums = [sum(distribution[c] for c in kept) for distribution in (p, q)]
    return 0.5 * sum(torch.abs(p[c] / sums[0] - q[c] / sums[1]) for c in kept)


def _apart(found, due, logits) -> float:
    """Return the largest difference of two losses and of their gradients; NaN if either is NaN."""
    gradients = [torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0] for loss in (found, due)]
    return torch.stack([(one - other).abs().max() for one, other in ((found, due), gradients)]).max().item()


@pytest.mark.parametrize("seed, k, density", itertools.product(range(4), (1, 2, 9), (True, False)))
def test_at_speed_s_is_its_equation(seed, k, density):
    logits, log_q, log_p, log_p_k, valid = _distributions(seed)
    due = torch.stack([_strict(*row, k, density) for row in
                       zip(log_q.exp(), log_p.exp(), log_p_k.exp(), valid, strict=True)])
    assert _apart(objective.at_speed_s(log_q, log_p, log_p_k, valid, k, density), due, logits) < 1e-9


@pytest.mark.parametrize("seed, k", itertools.product(range(4), (1, 2, 9)))
def test_at_speed_r_is_its_equation(seed, k):
    logits, log_q, log_p, _, valid = _distributions(seed)
    due = torch.stack([_relaxed(*row, k) for row in zip(log_q.exp(), log_p.exp(), valid, strict=True)])
    assert _apart(objective.at_speed_r(log_q, log_p, valid, k), due, logits) < 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_distillation_counts_all_other_tokens_as_one(seed):
    logits, log_q, log_p, _, _ = _distributions(seed)
    q, p = ([*row, 1 - row.sum()] for row in (log_q.exp()[0], log_p.exp()[0]))
    kl = sum(a * torch.log(a / b) for a, b in zip(p, q, strict=True))
    tvd = 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))
    assert _apart(objective.word_kd(log_q, log_p)[:1], kl[None], logits) < 1e-9
    assert _apart(objective.tvd_kd(log_q, log_p)[:1], tvd[None], logits) < 1e-9


@pytest.mark.parametrize("name", ["s", "r", "word", "tvd"])
def test_gradients_are_numeric_differences(name):
    logits, _, log_p, log_p_k, valid = _distributions(7)

    def loss(weights):
        log_q = weights.log_softmax(-1)[:, :CODES]
        return {"s": lambda: objective.at_speed_s(log_q, log_p, log_p_k, valid, 3),
                "r": lambda: objective.at_speed_r(log_q, log_p, valid, 3),
                "word": lambda: objective.word_kd(log_q, log_p),
                "tvd": lambda: objective.tvd_kd(log_q, log_p)}[name]()

    assert torch.autograd.gradcheck(loss, (logits,), atol=1e-6)


def test_what_the_losses_want():
    """S is lowest where q is p's best code; R, WordKD and TVDKD where q is p; each by search over a grid."""
    log_p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    steps = [(a / 20, b / 20, 1 - (a + b) / 20) for a in range(1, 19) for b in range(1, 20 - a)]
    grid = torch.tensor(steps, dtype=torch.float64)
    valid, log_p = torch.ones_like(grid, dtype=torch.bool), log_p.expand_as(grid)
    log_p_k = torch.full((len(grid),), math.log(0.3), dtype=torch.float64)
    strict = objective.at_speed_s(grid.log(), log_p, log_p_k, valid, 3)
    assert grid[strict.argmin()].argmax() == 0 and grid[strict.argmin()].max() == pytest.approx(0.9)
    for loss in (objective.at_speed_r(grid.log(), log_p, valid, 3), objective.word_kd(grid.log(), log_p),
                 objective.tvd_kd(grid.log(), log_p)):
        torch.testing.assert_close(grid[loss.argmin()], log_p[0].exp(), atol=1e-9, rtol=0)
