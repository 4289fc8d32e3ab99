"""Acceptance of three candidates under rules that ask more of the first than what is left of q behind it.

p and q are float64 (V,) and sum to 1, and more than three tokens have q. What is found is exact to 1e-9.
"""

import numba
import numpy as np

from dare_job.decode.sampling import inclusion
from dare_job.decode.sampling.race import left_of
from dare_job.decode.sampling.rejection import Sorted
from dare_job.decode.sampling.rising import Rising


def greedy(p: np.ndarray, q: np.ndarray) -> float:
    """Of the greedy rule for draws one after the other: it judges the last, the others come from the
    residual.

    Of p the last misses N(k), the sum of (p - k q)+, k being 1 / what is left of q. It would be accepted with
    min(p, k q) of either token before, too. Of both orders of the two, so that only the second is asked:
    what that makes of the first hangs on its q alone.
    """
    tokens = Sorted(p, q)
    rising, lefts = Rising(tokens), left_of(np.sort(tokens.q))

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
