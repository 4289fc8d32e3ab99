"""How many beams a layer keeps: as many as the drafts give with some probability, by p and q alone.

With p_1 = p, p_{j+1} = norm(p_j - q)+ and a_j = sum min(p_j, q), draft i is the first that is accepted with
probability f_i = a_i prod_{j<i} (1 - a_j), and k of m drafts are with

    P(m, 0) = prod_{j<=m} (1 - a_j),    P(m, k) = sum_i f_i P(m - i, k - 1)

so that W_L = max(W_min, max{K: sum_{k>=K} P(W_S, k) >= t}): Qin et al., section 3.2, equations 2 to 7. It is
exact for independent drafts and outputs; for others it is a rule like any other that reads p and q alone.
"""

import torch

from dare_job.decode.sampling.steps import normalised


def rates(p: torch.Tensor, q: torch.Tensor, n: int) -> torch.Tensor:
    """a_1 .. a_n float64 (R, n): a draft's acceptance where all since the last accepted one were rejected."""
    found = []
    for _ in range(n):
        found.append(torch.minimum(p, q).sum(-1).clamp_max(1.0))
        p = normalised((p - q).clamp_min(0), p)
    return torch.stack(found, -1)


def counts(a: torch.Tensor) -> torch.Tensor:
    """P float64 (R, n + 1, n + 1) of rates (R, n): [m, k], that k of m drafts are accepted."""
    rows, n = a.shape
    missed = torch.cat((a.new_ones(rows, 1), (1 - a).cumprod(-1)), -1)  # (R, n + 1)
    first = a * missed[:, :-1]
    table = a.new_zeros(rows, n + 1, n + 1)
    table[:, :, 0] = missed
    for k in range(1, n + 1):
        for m in range(k, n + 1):
            table[:, m, k] = (first[:, :m] * table[:, :m, k - 1].flip(-1)).sum(-1)
    return table


def at_least(table: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """float64 (R, n + 1): probability that K or more of n drafts are accepted.

    mass (R,): probability that a draft's parent is among the beams; the others are dropped unseen, so that m
    of n drafts count with the probability of a binomial law.
    """
    n = table.shape[1] - 1
    m = torch.arange(n + 1, dtype=mass.dtype, device=mass.device)
    ways = torch.lgamma(m.new_tensor(n + 1.0)) - torch.lgamma(m + 1) - torch.lgamma(n - m + 1)
    share = ways.exp() * mass[:, None] ** m * (1 - mass[:, None]).clamp_min(0) ** (n - m)  # 0 ** 0 is 1
    law = (share[:, :, None] * table).sum(1)
    return law.flip(-1).cumsum(-1).flip(-1)


def reach(p: torch.Tensor, q: torch.Tensor, n: int, mass: torch.Tensor) -> torch.Tensor:
    """float64 (R, n + 1): probability that K or more of n drafts are accepted, of laws (R, S)."""
    return at_least(counts(rates(p, q, n)), mass)


def widths(reached: torch.Tensor, threshold: float, least: int, most: int) -> torch.Tensor:
    """W_L int64 (R,) within [least, most], by what ``reach`` says."""
    enough = reached[:, 1:] >= threshold - 1e-12  # sums that rounding spoils
    return enough.sum(-1).clamp(least, most)


def layers_bound(threshold: float, beta: float, layers: int) -> float:
    """Least expected layers of a step with so many drafted ones: with b = min(t, beta),
    (1 - b**(layers + 1)) / (1 - b) (theorem 3.2, where it stands as an equality; p = q gives layers + 1).

    beta: least probability, over layers, that W_min drafts are accepted.
    """
    passed = min(threshold, beta)
    return float(sum(passed**layer for layer in range(layers + 1)))
