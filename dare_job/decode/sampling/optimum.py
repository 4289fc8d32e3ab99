"""The greatest acceptance rate that any exact rule can have, for each draft law.

It is 1 + min over sets H of tokens of P(H) - Q(H), Q(H) being the probability that all candidates are in H
(Hu et al., arXiv 2502.18779). For independent, sequential and distinct draws the best set is a prefix of the
tokens by rising p / q.
"""

import itertools

import numpy as np
import torch

from dare_job.decode.sampling import prefixes, race
from dare_job.decode.sampling.laws import check_count, law

_SUBSETS = 16  # tokens


def optimum(law_name: str, p: torch.Tensor, q: torch.Tensor, n: int) -> float:
    """Of p and q float32 (V,); exact to rounding, for ``without_replacement`` to some 1e-12."""
    check_count(law(law_name), n)
    p, q = (np.asarray(x, np.float64) for x in (p, q))
    p, q = p / p.sum(), q / q.sum()
    if law_name in ("top_k", "greedy", "spechub"):
        return _fixed_but_one(law_name, p, q, n)
    inside = np.flatnonzero(q)
    if law_name != "iid" and len(inside) <= n:
        return float(p[inside].sum())
    order = inside[np.argsort(p[inside] / q[inside])]
    p, q = p[order], q[order]
    if law_name == "without_replacement":
        return float(1 + race.least(p, q, n))
    whole = prefixes.independent(q, n) if law_name == "iid" else prefixes.distinct(q, n)
    return float(1 + min(0.0, (np.cumsum(p) - whole).min()))


def most_probable(q: np.ndarray, n: int) -> np.ndarray:
    """Of equals the first, as the laws take them."""
    if n >= np.count_nonzero(q):
        return np.flatnonzero(q)
    least = np.partition(q, len(q) - n)[len(q) - n] if n else np.inf
    above = np.flatnonzero(q > least)
    return np.append(above, np.flatnonzero(q == least)[: n - len(above)])


def by_subsets(p: torch.Tensor, tuples: torch.Tensor, chances: torch.Tensor) -> float:
    """Of p (V,) and any law, given as ``enumerate_draws`` gives it, over all sets of up to 16 tokens."""
    p, best = p.double() / p.double().sum(), 0.0
    if len(p) > _SUBSETS:
        raise ValueError(f"{len(p)} tokens have too many subsets: {_SUBSETS} at most")
    for bits in itertools.product((False, True), repeat=len(p)):
        inside = torch.tensor((*bits, True))  # the last: no candidate
        best = min(best, float(p[inside[:-1]].sum() - chances[inside[tuples].all(-1)].sum()))
    return 1 + best


def _fixed_but_one(law_name: str, p: np.ndarray, q: np.ndarray, n: int) -> float:
    """One candidate at most is a chance: what is certain is accepted whole, and the least of two beside it.

    SpecHub's pairs hold the most probable token and one of the rest, as greedy's do.
    """
    certain = n if law_name == "top_k" else n - 1
    best = most_probable(q, certain)
    rest = q.copy()
    rest[best] = 0
    mass = rest.sum()
    shared = np.minimum(p, rest / mass).sum() if law_name != "top_k" and mass > 0 else 0.0
    return float(p[best].sum() + shared)


