"""Acceptance of recursive rejection of three independent draws of which no two are equal.

The first is of q e_2, e_2 being of all other tokens; the second, behind x, of q (1 - q - q_x); the last of
what is left of q. Of p the first leaves a, p less its law, and the second (a - c q (1 - q - q_x))+, c hanging
on q_x alone: again a sum over x as in ``three.py``, but that the order of tokens for the last changes with x.
"""

import numpy as np

from dare_job.decode.sampling.rejection import Sorted
from dare_job.decode.sampling.three import Rising


def distinct(p: np.ndarray, q: np.ndarray) -> float:
    """Of p and q float64 (V,), which sum to 1; exact to some 1e-11."""
    rising, never = Rising(Sorted(p, q)), p[q == 0].sum()
    if len(rising.q) <= 3:
        return float(rising.p.sum())
    law = rising.q * _of_others(rising)
    law /= law.sum()
    left = np.maximum(rising.p - law, 0)
    owed = left.sum() + never
    if owed == 0:
        return 1.0

    def second(own, place):
        return _rejected(own, place, rising, left, never) / owed

    return 1 - rising.summed(second, np.maximum(law - rising.p, 0))


def _rejected(own: float, place: int, rising: Rising, left: np.ndarray, never: float) -> float:
    """What is owed where the second and the last are rejected behind the first, which has q ``own``; left:
    what is owed of each token before, ``never`` of all that are not drafted."""
    rests = rising.rests(own, place)
    law, again = rising.q * rests, own * (1 - 2 * own) if place < 0 else 0.0
    if place >= 0:
        law[place] = 0
    scale = (left.sum() + never) / (law.sum() - again)
    behind = left - scale * law
    rejected, behind = np.maximum(-behind, 0), np.maximum(behind, 0)
    owed, some = behind.sum() + never, behind > 0
    if owed == 0:
        return 0.0
    last = Sorted(np.append(behind[some], never), np.append(rising.q[some], 0.0))
    asked = rejected > 0
    found = rejected[asked] @ last.mass(owed / rests[asked])
    if again:
        found -= scale * again * last.mass(owed / (1 - 2 * own))
    return float(found / owed)


def _of_others(rising: Rising) -> np.ndarray:
    """e_2 of all tokens but each, (m,): of heavy ones without a difference."""
    found = _e2(rising.q) - rising.q * rising.left
    for x in range(rising.light, len(rising.q)):
        found[x] = _e2(np.delete(rising.q, x))
    return found


def _e2(q: np.ndarray) -> float:
    return float(q[1:] @ np.cumsum(q)[:-1])
