"""The greatest acceptance rate that any exact rule can have, for each draft law.

It is 1 + min over sets H of tokens of P(H) - Q(H), Q(H) being the probability that all candidates are in H
(Hu et al., arXiv 2502.18779). For independent, sequential and distinct draws the best set is a prefix of the
tokens by rising p / q.

Q of growing sets: the probability that all n candidates are among the first i tokens, for every i.

Each takes q float64 (m,) in the order in which tokens are added, summing to 1, and gives Q (m,). ``race.py``
has that of draws without replacement.

Q of growing sets for draws without replacement, one after the other (Plackett-Luce), fast.

Token i arrives at a time of rate q_i. With b_i = e^(q_i t) - 1, l the rate of all that is not in H and e_k
the elementary symmetric polynomials, fewer than n tokens of H come before any other with probability l times
the sum over k < n of the integral of e^-t e_k(b_i, i in H). For k = 0 it is 1, for k = 1 the sum of
q_i / (1 - q_i); the others are integrated by the trapezoid rule in log t. Light tokens go in by blocks,
through power sums.
"""

import itertools
import math

import numba
import numpy as np
import torch

from dare_job.decode.sampling.distributions import check_count, distribution_for


def independent(q: np.ndarray, n: int) -> np.ndarray:
    return np.cumsum(q) ** n


def distinct(q: np.ndarray, n: int) -> np.ndarray:
    """Of independent draws, given that no two are equal: shares of elementary symmetric polynomials."""
    sums = _symmetric(q, n)
    return sums / sums[-1]


@numba.njit(cache=True)
def _symmetric(q, n):
    """e_n of the first i of q, for every i."""
    sums, out = np.zeros(n + 1), np.empty(len(q))
    sums[0] = 1
    for i in range(len(q)):
        for k in range(n, 0, -1):
            sums[k] += q[i] * sums[k - 1]
        out[i] = sums[n]
    return out

_STEP, _LOG_T_MIN = 0.25, -10.0  # of log t; the integrand is under 1e-13 below the lowest

_MAX_RATE_TIME = 40.0  # e^-40 of the slowest part is left

POWERS = 6  # of q t of light tokens, which are at most LIGHT

LIGHT = 0.1  # where e^-40 is left; it is a tenth of that where the integrand counts

_BLOCK, _SLACK = 64, 1e-13


def min_difference(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """The least P - Q of the first i tokens, 0 of none; p, q float64 (m,) by rising p / q, m over n.

    Q is convex in the sum of q, so that blocks which cannot hold the least are seen from their ends.
    """
    sums, mass = np.cumsum(p), np.cumsum(q)
    ends = np.append(np.arange(_BLOCK - 1, len(q) - 1, _BLOCK), len(q) - 1)
    inside = sequential(q, n, ends)
    best = min(0.0, (sums[ends] - inside).min())
    chord = np.interp(mass, np.append(0, mass[ends]), np.append(0, inside))
    again = np.unique(np.append(np.flatnonzero(sums - chord < best - _SLACK), len(q) - 1))
    return min(best, (sums[again] - sequential(q, n, again)).min())


def sequential(q: np.ndarray, n: int, ends: np.ndarray) -> np.ndarray:
    """Q (E,) of the tokens up to each end; q float64 (m,) sums to 1, m over n; ends rise to m - 1."""
    outside = np.append(np.cumsum(q[:0:-1])[::-1], 0.0)[ends]
    if n == 1:
        return 1 - outside
    inside = 1 + np.cumsum(q / complements(q))[ends]
    if n > 2:
        times = quadrature_times(q, n, _STEP)
        heavy = q * times[-1] > LIGHT
        left = q[~heavy].sum() + np.append(np.cumsum(q[heavy][::-1])[::-1], 0.0)
        inside += _integrals(q, heavy, left, times, n, ends, coefficients(n))
    return 1 - outside * inside


def complements(q: np.ndarray) -> np.ndarray:
    """1 - q, with all its digits where one token has nearly everything."""
    others, largest = 1 - q, int(np.argmax(q))
    others[largest] = q[:largest].sum() + q[largest + 1 :].sum()
    return others


def quadrature_times(q: np.ndarray, n: int, step: float) -> np.ndarray:
    """Times (T,), equal steps of log t apart: behind the last n tokens have arrived but for e^-40."""
    slowest = np.partition(q, len(q) - n + 1)[: len(q) - n + 1].sum()
    return np.exp(np.arange(_LOG_T_MIN, np.log(_MAX_RATE_TIME / slowest) + step, step))


def coefficients(n: int) -> np.ndarray:
    """Of z^m in (e^z - 1)^j, (n, POWERS + 1): m to POWERS, j below n."""
    first = np.array([0.0] + [1 / math.factorial(m) for m in range(1, POWERS + 1)])
    rows = [np.eye(POWERS + 1)[0]]
    for _ in range(n - 1):
        rows.append(np.convolve(rows[-1], first)[: POWERS + 1])
    return np.array(rows)


@numba.njit(cache=True)
def _integrals(q, heavy, left, times, n, ends, coefficients):
    """Sum over 1 < k < n of the integral of e^-t e_k of the tokens up to each end.

    e_k is kept times e^(-t h), h the sum of the heavy tokens so far, so that nothing overflows. left: 1 - h
    before each heavy token, and behind the last.
    """
    e, out, moments = np.zeros((n, len(times))), np.empty(len(ends)), np.zeros(POWERS + 1)
    e[0] = 1
    weights, weighed = np.empty(len(times)), -1
    passed, start, pending = 0, 0, False
    for at in range(len(ends)):
        for i in range(start, ends[at] + 1):
            if not heavy[i]:
                power = 1.0
                for m in range(1, POWERS + 1):
                    power *= q[i]
                    moments[m] += power
                pending = True
                continue
            passed += 1
            _add_heavy(e, np.exp(-q[i] * times))
        if pending:
            add_light(e, times, moments, coefficients)
            moments[:], pending = 0, False
        start = ends[at] + 1
        if weighed != passed:
            weights, weighed = _STEP * times * np.exp(-left[passed] * times), passed
        total = 0.0
        for k in range(2, n):
            total += np.sum(weights * e[k])
        out[at] = total
    return out


@numba.njit
def _add_heavy(e, missed):
    """One token that has not arrived with probability ``missed`` at each time."""
    for k in range(len(e) - 1, 0, -1):
        for m in range(len(missed)):
            e[k, m] = e[k, m] * missed[m] + e[k - 1, m] * (1 - missed[m])
    e[0] *= missed


@numba.njit(cache=True)
def add_light(e, times, moments, coefficients):
    """Tokens with the sums of powers ``moments``: by their power sums of b, and Newton's identities."""
    n = len(e)
    powers, own = np.empty(n), np.empty(n)
    for m in range(len(times)):
        for j in range(1, n):
            powers[j], time = 0.0, 1.0
            for d in range(1, len(moments)):
                time *= times[m]
                powers[j] += coefficients[j, d] * moments[d] * time
        own[0] = 1.0
        for k in range(1, n):
            total, sign = 0.0, 1.0
            for j in range(1, k + 1):
                total += sign * own[k - j] * powers[j]
                sign = -sign
            own[k] = total / k
        for k in range(n - 1, 0, -1):
            for j in range(1, k + 1):
                e[k, m] += own[j] * e[k - j, m]

_SUBSETS = 16  # tokens


def optimum(law_name: str, p: torch.Tensor, q: torch.Tensor, n: int) -> float:
    """Of p and q float32 (V,); exact to rounding, for ``without_replacement`` to some 1e-12."""
    check_count(distribution_for(law_name), n)
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
        return float(1 + min_difference(p, q, n))
    whole = independent(q, n) if law_name == "iid" else distinct(q, n)
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
