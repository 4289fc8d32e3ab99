"""Acceptance of three candidates under rules that ask more of the first than what is left of q behind it.

p and q are float64 (V,) and sum to 1, and more than three tokens have q. What is found is exact to 1e-9.

Acceptance of recursive rejection of three independent draws of which no two are equal.

The first is of q e_2, e_2 being of all other tokens; the second, behind x, of q (1 - q - q_x); the last of
what is left of q. Of p the first leaves a, p less its law, and the second (a - c q (1 - q - q_x))+, c hanging
on q_x alone: a sum over x as in ``rising.py``, but the order of tokens for the last changes with x.
"""

import numba
import numpy as np

from dare_job.evaluate.acceptance import inclusion
from dare_job.evaluate.acceptance.optimum import complements
from dare_job.evaluate.acceptance.recursive import SortedByQ, Token
from dare_job.evaluate.acceptance.rejection import SortedByRatio


def greedy(p: np.ndarray, q: np.ndarray) -> float:
    """Of the greedy rule for draws one after the other: it judges the last, the others come from the
    residual.

    Of p the last misses N(k), the sum of (p - k q)+, k being 1 / what is left of q. It would be accepted with
    min(p, k q) of either token before, too. Of both orders of the two, so that only the second is asked:
    what that makes of the first hangs on its q alone.
    """
    tokens = SortedByRatio(p, q)
    rising, lefts = SortedByQ(tokens), complements(np.sort(tokens.q))

    def second(token, miss):
        left, rests = rising.left((token,)), rising.lefts((token,))
        return _missed(token.q, token.place < 0, left, rests, rising.q, rising.ratio, lefts, tokens.ratio,
                       tokens.over_p, tokens.over_q)

    own, left, ratio = (each[: rising.light] for each in (rising.q, lefts, rising.ratio))
    twice = own**3 * 2 / left * np.minimum(ratio, 1 / (1 - 2 * own))
    return inclusion.sequential(p, q, 2) + 1 - (rising.summed(second, rising.q) - float(twice.sum()))


@numba.njit(cache=True)
def _missed(own, light, left, rests, q, ratios, lefts, ratio, over_p, over_q):
    """The sum over second tokens, all that leave something behind the first; by rising q but for the last
    three arrays."""
    at, total = 0, 0.0
    for i in range(len(q)):
        if rests[i] <= 0:
            continue
        scale = 1 / rests[i]
        while at < len(ratio) and ratio[at] <= scale:
            at += 1
        owed = max(over_p[at] - scale * over_q[at], 0.0)
        total += q[i] * (owed / left + (1 / left + 1 / lefts[i]) * q[i] * min(ratios[i], scale))
    if light:
        scale = 1 / (left - own)
        at = np.searchsorted(ratio, scale, side="right")
        total -= own * max(over_p[at] - scale * over_q[at], 0.0) / left
    return total


def distinct(p: np.ndarray, q: np.ndarray) -> float:
    """Of p and q float64 (V,) that sum to 1, more than three tokens having q; exact to 1e-9."""
    rising, never = SortedByQ(SortedByRatio(p, q)), p[q == 0].sum()
    law = rising.q * _e2_of_others(rising)
    law /= law.sum()
    left = np.maximum(rising.p - law, 0)
    owed = left.sum() + never
    if owed == 0:
        return 1.0
    return 1 - rising.summed(lambda token, miss: _rejected(token, rising, left, never) / owed,
                             np.maximum(law - rising.p, 0))


def _rejected(token: Token, rising: SortedByQ, left: np.ndarray, never: float) -> float:
    """What is owed where the second and the last are rejected behind a first token; left: what is owed of
    each token before, ``never`` of all that are not drafted."""
    lefts = rising.lefts((token,))
    law, again = rising.q * lefts, token.q * (1 - 2 * token.q) if token.place < 0 else 0.0
    scale = (left.sum() + never) / (law.sum() - again)
    behind = left - scale * law
    rejected, behind = np.maximum(-behind, 0), np.maximum(behind, 0)
    owed, some = behind.sum() + never, behind > 0
    if owed == 0:
        return 0.0
    last = SortedByRatio(np.append(behind[some], never), np.append(rising.q[some], 0.0))
    asked = rejected > 0
    found = rejected[asked] @ last.mass(owed / lefts[asked])
    if again:
        found -= scale * again * last.mass(owed / (1 - 2 * token.q))
    return float(found / owed)


def _e2_of_others(rising: SortedByQ) -> np.ndarray:
    """e_2 of all tokens but each, (m,): of heavy ones without a difference."""
    found = _e2(rising.q) - rising.q * rising.lefts(())
    for x in range(rising.light, len(rising.q)):
        found[x] = _e2(np.delete(rising.q, x))
    return found


def _e2(q: np.ndarray) -> float:
    return float(q[1:] @ np.cumsum(q)[:-1])
