"""Acceptance of recursive rejection of three independent draws of which no two are equal.

The first is of q e_2, e_2 being of all other tokens; the second, behind x, of q (1 - q - q_x); the last of
what is left of q. Of p the first leaves a, p less its law, and the second (a - c q (1 - q - q_x))+, c hanging
on q_x alone: a sum over x as in ``rising.py``, but the order of tokens for the last changes with x.
"""

import numpy as np

from dare_job.decode.sampling.rejection import Sorted
from dare_job.decode.sampling.rising import Rising, Token


def distinct(p: np.ndarray, q: np.ndarray) -> float:
    """Of p and q float64 (V,) that sum to 1, more than three tokens having q; exact to 1e-9."""
    rising, never = Rising(Sorted(p, q)), p[q == 0].sum()
    law = rising.q * _of_others(rising)
    law /= law.sum()
    left = np.maximum(rising.p - law, 0)
    owed = left.sum() + never
    if owed == 0:
        return 1.0
    return 1 - rising.summed(lambda token, miss: _rejected(token, rising, left, never) / owed,
                             np.maximum(law - rising.p, 0))


def _rejected(token: Token, rising: Rising, left: np.ndarray, never: float) -> float:
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
    last = Sorted(np.append(behind[some], never), np.append(rising.q[some], 0.0))
    asked = rejected > 0
    found = rejected[asked] @ last.mass(owed / lefts[asked])
    if again:
        found -= scale * again * last.mass(owed / (1 - 2 * token.q))
    return float(found / owed)


def _of_others(rising: Rising) -> np.ndarray:
    """e_2 of all tokens but each, (m,): of heavy ones without a difference."""
    found = _e2(rising.q) - rising.q * rising.lefts(())
    for x in range(rising.light, len(rising.q)):
        found[x] = _e2(np.delete(rising.q, x))
    return found


def _e2(q: np.ndarray) -> float:
    return float(q[1:] @ np.cumsum(q)[:-1])
