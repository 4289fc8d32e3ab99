"""Acceptance of three candidates under rules for which the first candidate matters beyond the q that it
removes.

p and q are float64 (V,) with sum 1 and more than three tokens in the support of q. Results are exact to 1e-9.

Recursive rejection of three distinct candidates: the first has distribution q e_2, e_2 over all other tokens;
the second, after x, has q (1 - q - q_x); the last has what is left of q. The first leaves the residual a = (p
- its distribution)+, the second (a - c q (1 - q - q_x))+ with c depending on q_x alone. This is a sum over x
as in ``recursive.py``, but the token order for the last candidate changes with x.
"""

import numba
import numpy as np

from dare_job.evaluate.acceptance import inclusion
from dare_job.evaluate.acceptance.closed_forms import SortedByRatio
from dare_job.evaluate.acceptance.optimum import complements
from dare_job.evaluate.acceptance.recursive import SortedByQ, Token


def greedy(p: np.ndarray, q: np.ndarray) -> float:
    """Acceptance of the greedy rule for three candidates without replacement.

    It verifies the last candidate and emits the others through the residual. The last misses N(k), the sum of
    (p - k q)+ with k = 1 / (remaining q), and would accept min(p, k q) of the first two as well. The sum
    takes both orders of the two, so that only the second is summed over: the first matters through its q
    alone.
    """
    tokens = SortedByRatio(p, q)
    tokens_by_q, complement = SortedByQ(tokens), complements(np.sort(tokens.q))

    def second(token, tolerance):
        remaining, remaining_after = tokens_by_q.remaining((token,)), tokens_by_q.remaining_after((token,))
        return _missed(token.q, token.place < 0, remaining, remaining_after, tokens_by_q.q, tokens_by_q.ratio,
                       complement, *tokens.over)

    light_q, remaining, ratio = (
        each[: tokens_by_q.light] for each in (tokens_by_q.q, complement, tokens_by_q.ratio))
    counted_twice = light_q**3 * 2 / remaining * np.minimum(ratio, 1 / (1 - 2 * light_q))
    missed = tokens_by_q.weighted_sum(second, tokens_by_q.q) - float(counted_twice.sum())
    return inclusion.sequential(p, q, 2) + 1 - missed


@numba.njit(cache=True)
def _missed(first_q, light, remaining, remaining_after, q, ratios, complement, ratio, over_p, over_q):
    """Sum over second tokens that leave some q after the first, by q except for the last three arrays."""
    at, total = 0, 0.0
    for i in range(len(q)):
        if remaining_after[i] <= 0:
            continue
        scale = 1 / remaining_after[i]
        while at < len(ratio) and ratio[at] <= scale:
            at += 1
        residual = max(over_p[at] - scale * over_q[at], 0.0)
        shared = (1 / remaining + 1 / complement[i]) * q[i] * min(ratios[i], scale)
        total += q[i] * (residual / remaining + shared)
    if light:
        scale = 1 / (remaining - first_q)
        at = np.searchsorted(ratio, scale, side="right")
        total -= first_q * max(over_p[at] - scale * over_q[at], 0.0) / remaining
    return total


def distinct(p: np.ndarray, q: np.ndarray) -> float:
    """Acceptance of recursive rejection for three candidates of the distribution "distinct"."""
    tokens_by_q, never = SortedByQ(SortedByRatio(p, q)), p[q == 0].sum()
    first = tokens_by_q.q * _e2_of_others(tokens_by_q)
    first /= first.sum()
    residual = np.maximum(tokens_by_q.p - first, 0)
    residual_mass = residual.sum() + never
    if residual_mass == 0:
        return 1.0
    return 1 - tokens_by_q.weighted_sum(
        lambda token, tolerance: _rejected(token, tokens_by_q, residual, never) / residual_mass,
        np.maximum(first - tokens_by_q.p, 0),
    )


def _rejected(token: Token, tokens_by_q: SortedByQ, residual: np.ndarray, never: float) -> float:
    """Return the residual mass where the second and the last candidate are rejected after a first token.

    residual is the first candidate's residual per token, ``never`` that of all tokens outside the support of
    q.
    """
    remaining_after = tokens_by_q.remaining_after((token,))
    second, own_q = tokens_by_q.q * remaining_after, token.q * (1 - 2 * token.q) if token.place < 0 else 0.0
    scale = (residual.sum() + never) / (second.sum() - own_q)
    difference = residual - scale * second
    rejected, difference = np.maximum(-difference, 0), np.maximum(difference, 0)
    rest_mass, positive = difference.sum() + never, difference > 0
    if rest_mass == 0:
        return 0.0
    last = SortedByRatio(np.append(difference[positive], never), np.append(tokens_by_q.q[positive], 0.0))
    is_rejected = rejected > 0
    total = rejected[is_rejected] @ last.mass(rest_mass / remaining_after[is_rejected])
    if own_q:
        total -= scale * own_q * last.mass(rest_mass / (1 - 2 * token.q))
    return float(total / rest_mass)


def _e2_of_others(tokens_by_q: SortedByQ) -> np.ndarray:
    """Return e_2 of all tokens but each, (m,), without cancellation for heavy ones."""
    result = _e2(tokens_by_q.q) - tokens_by_q.q * tokens_by_q.remaining_after(())
    for x in range(tokens_by_q.light, len(tokens_by_q.q)):
        result[x] = _e2(np.delete(tokens_by_q.q, x))
    return result


def _e2(q: np.ndarray) -> float:
    return float(q[1:] @ np.cumsum(q)[:-1])
