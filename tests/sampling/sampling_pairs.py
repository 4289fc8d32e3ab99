"""What the sampling tests share: pairs of laws over few tokens, exact judgement, a linear program."""

import numpy as np
import torch
from draft_trees import World, shares
from scipy.optimize import linprog
from scipy.sparse import coo_array

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, NONE, enumerate_candidates
from dare_job.decode.sampling.rules import RULES
from dare_job.decode.sampling.verify import Verifier

NODE_RULES = [(rule.name, law) for rule in RULES.values() for law in rule.distributions
              if None in (rule.count, DISTRIBUTIONS[law].count) or rule.count == DISTRIBUTIONS[law].count]
SIZES = ((1, 2), (2, 1), (3, 2), (4, 3), (6, 4), (3, 4), (5, 1))  # tokens, candidates


def pairs(tokens: int, seed: int = 0):
    """Pairs p, q float32 (V,): flat, peaked, with zeros, equal, one-hot, and disjoint."""
    rng = torch.Generator().manual_seed(1000 * seed + tokens)
    flat, other = _law(tokens, 1, rng), _law(tokens, 1, rng)
    peaked, rare = _law(tokens, 20, rng), _law(tokens, 6, rng)
    holes = other * (torch.arange(tokens) % 2 == 0)
    first, last = torch.eye(tokens)[0], torch.eye(tokens)[-1]
    found = [(flat, other), (flat, peaked), (peaked, rare), (rare, peaked), (flat, holes / holes.sum()),
             (holes / holes.sum(), rare), (flat, flat), (peaked, peaked), (first, flat), (first, first),
             (flat, last)]
    if tokens > 1:
        rest = flat * (1 - last)
        found += [(first, last), (rest / rest.sum(), last), (last, rest / rest.sum())]
    return found


def _law(tokens, power, rng):
    weights = torch.rand(tokens, generator=rng) ** power + 1e-7
    return (weights / weights.sum()).float()


def worlds(tokens: int) -> list[World]:
    """Flat, peaked, one with zeros in p and q, equal p and q, and disjoint ones."""
    found, odd = [], torch.arange(tokens) % 2 == 1
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
        found.append(World([shares(x).float() for x in p], [shares(x).float() for x in q]))
    return found


def takes(rule: str | None, law: str, widths: tuple[int, ...]) -> bool:
    """Whether a rule of NODE_RULES, or the traversal (None), judges a tree of the law with these widths."""
    only = DISTRIBUTIONS[law].count or (RULES[rule].count if rule else None)
    return only is None or set(widths) == {only}


def exact_ways():
    """Every rule with every law that it is exact for, and every size that both take."""
    for rule in RULES.values():
        for name in rule.distributions:
            for tokens, n in SIZES:
                if rule.count in (None, n) and DISTRIBUTIONS[name].count in (None, n):
                    yield rule.name, name, tokens, n


def judged(verifier: Verifier, p, q, law=None):
    """Law float64 (V,) of the emitted token and the acceptance rate, over all that the law may draft."""
    tuples, chances = enumerate_candidates(law or verifier.distribution, q, verifier.n)
    output = verifier.output_distribution(p.expand(len(tuples), -1), q.expand(len(tuples), -1), tuples)
    return chances @ output.tokens, float(chances @ output.places.sum(-1))


def distance(law, p) -> float:
    """Total variation from p float32 (V,), normalised."""
    return float((law - p.double() / p.double().sum()).abs().sum() / 2)


def best_by_program(p, tuples, chances) -> float:
    """The greatest acceptance rate of any coupling, by a linear program over tuples and tokens in them."""
    p = (p.double() / p.double().sum()).numpy()
    ways = [(t, token) for t, row in enumerate(tuples.tolist()) for token in set(row) - {NONE}]
    if not ways:
        return 0.0
    which, tokens = np.array(ways).T
    columns = np.arange(len(ways))
    uses = coo_array((np.ones(2 * len(ways)), (np.r_[which, len(tuples) + tokens], np.r_[columns, columns])),
                     shape=(len(tuples) + len(p), len(ways)))
    found = linprog(-np.ones(len(ways)), A_ub=uses.tocsr(), b_ub=np.r_[chances.numpy(), p], method="highs",
                    options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10})
    assert found.success, found.message
    return -found.fun
