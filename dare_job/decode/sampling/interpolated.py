"""Sums over very many tokens of a function of one number, which costs too much to be had of each."""

from collections.abc import Callable
from functools import cache

import numpy as np

_ENOUGH = 1e-12  # that a parabola misses of an interval's sum; the quartic that is taken misses less
_FEW = 5  # points: the function is had of each
_PLACES = np.linspace(0, 1, 5)
_QUARTIC = np.linalg.inv(np.vander(_PLACES, increasing=True))  # its coefficients, by its values there


def summed(function: Callable[[float], float], x: np.ndarray, weights: np.ndarray) -> float:
    """The sum of weights times the function of x; x float64 (N,) rises, weights (N,) are not negative.

    Of x in an interval the function is a quartic through five points where a parabola through three comes
    near enough to the other two; else the interval is halved.
    """
    known, total, waiting = cache(function), 0.0, [(0, len(x))] if len(x) else []
    while waiting:
        low, high = waiting.pop()
        start, width = x[low], x[high - 1] - x[low]
        if width == 0:
            total += known(start) * weights[low:high].sum()
            continue
        if high - low <= _FEW:
            total += sum(known(x[i]) * weights[i] for i in range(low, high))
            continue
        values = np.array([known(start + width * place) for place in _PLACES])
        missed = np.abs(values[[1, 3]] - values[[0, 2, 4]] @ [[3 / 8, -1 / 8], [3 / 4, 3 / 4], [-1 / 8, 3 / 8]])
        if missed.max() * weights[low:high].sum() > _ENOUGH:
            middle = low + int(np.searchsorted(x[low:high], start + width / 2))
            waiting += [(low, middle), (middle, high)]
            continue
        at = np.vander((x[low:high] - start) / width, 5, increasing=True)
        total += float(weights[low:high] @ (at @ (_QUARTIC @ values)))
    return float(total)
