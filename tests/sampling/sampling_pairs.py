"""Shared by the sampling tests: pairs of distributions over few tokens, exact outputs, and a linear program.
"""

import numpy as np
import torch
from draft_trees import World, shares
from scipy.optimize import linprog
from scipy.sparse import coo_array

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, NONE, enumerate_candidates
from dare_job.decode.sampling.rules import RULES
from dare_job.decode.sampling.verify import Verifier

NODE_RULES = [
    (rule.name, distribution)
    for rule in RULES.values()
    for distribution in rule.distributions
    if None in (rule.count, DISTRIBUTIONS[distribution].count)
    or rule.count == DISTRIBUTIONS[distribution].count
]
SIZES = ((1, 2), (2, 1), (3, 2), (4, 3), (6, 4), (3, 4), (5, 1))  # tokens, candidates


def pairs(tokens: int, seed: int = 0):
    """Return pairs p, q float32 (V,): flat, peaked, with zeros, equal, one-hot, and disjoint."""
    rng = torch.Generator().manual_seed(1000 * seed + tokens)
    flat, other = _distribution(tokens, 1, rng), _distribution(tokens, 1, rng)
    peaked, rare = _distribution(tokens, 20, rng), _distribution(tokens, 6, rng)
    holes = other * (torch.arange(tokens) % 2 == 0)
    first, last = torch.eye(tokens)[0], torch.eye(tokens)[-1]
    result = [(flat, other), (flat, peaked), (peaked, rare), (rare, peaked), (flat, holes / holes.sum()),
             (holes / holes.sum(), rare), (flat, flat), (peaked, peaked), (first, flat), (first, first),
             (flat, last)]
    if tokens > 1:
        rest = flat * (1 - last)
        result += [(first, last), (rest / rest.sum(), last), (last, rest / rest.sum())]
    return result


def _distribution(tokens, power, rng):
    weights = torch.rand(tokens, generator=rng) ** power + 1e-7
    return (weights / weights.sum()).float()


def worlds(tokens: int) -> list[World]:
    """Return worlds: flat, peaked, with zeros in p and q, with equal p and q, and disjoint."""
    result, odd = [], torch.arange(tokens) % 2 == 1
    for seed, power in ((0, 1), (1, 6), (2, 2), (3, 3), (4, 2)):
        rng = torch.Generator().manual_seed(seed)
        p, q = ([torch.rand((tokens,) * depth, generator=rng) ** power + 1e-6 for depth in (1, 2, 3)]
                for _ in range(2))
        if seed == 2:
            p[1] = p[1] * odd
            q[0] = q[0] * (torch.arange(tokens) > 0)
            q[1] = q[1] * torch.eye(tokens).flip(0)
        if seed == 3:
            q = p
        if seed == 4:
            p, q = [x * odd for x in p], [x * ~odd for x in q]
        result.append(World([shares(x).float() for x in p], [shares(x).float() for x in q]))
    return result


def supports(rule: str | None, distribution: str, widths: tuple[int, ...]) -> bool:
    """Return whether a rule of NODE_RULES, or traversal (None), supports trees of these widths."""
    count = DISTRIBUTIONS[distribution].count or (RULES[rule].count if rule else None)
    return count is None or set(widths) == {count}


def exact_cases():
    """Yield every rule with every distribution and size for which it is exact."""
    for rule in RULES.values():
        for name in rule.distributions:
            for tokens, n in SIZES:
                if rule.count in (None, n) and DISTRIBUTIONS[name].count in (None, n):
                    yield rule.name, name, tokens, n


def exact_output(verifier: Verifier, p, q, distribution=None):
    """Return the distribution float64 (V,) of the emitted token and the acceptance rate, over all drafts."""
    tuples, probabilities = enumerate_candidates(distribution or verifier.distribution, q, verifier.n)
    output = verifier.output_distribution(p.expand(len(tuples), -1), q.expand(len(tuples), -1), tuples)
    return probabilities @ output.tokens, float(probabilities @ output.places.sum(-1))


def distance(distribution, p) -> float:
    """Return the total variation from p float32 (V,), normalised."""
    return float((distribution - p.double() / p.double().sum()).abs().sum() / 2)


def linear_program_optimum(p, tuples, probabilities) -> float:
    """Return the highest acceptance rate of any coupling, by a linear program over tuples and their tokens.
    """
    p = (p.double() / p.double().sum()).numpy()
    ways = [(t, token) for t, row in enumerate(tuples.tolist()) for token in set(row) - {NONE}]
    if not ways:
        return 0.0
    which, tokens = np.array(ways).T
    columns = np.arange(len(ways))
    uses = coo_array((np.ones(2 * len(ways)), (np.r_[which, len(tuples) + tokens], np.r_[columns, columns])),
                     shape=(len(tuples) + len(p), len(ways)))
    solution = linprog(
        -np.ones(len(ways)),
        A_ub=uses.tocsr(),
        b_ub=np.r_[probabilities.numpy(), p],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert solution.success, solution.message
    return -solution.fun
