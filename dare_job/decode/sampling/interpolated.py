"""Sums over very many tokens of a function of one number, which costs too much to be had of each."""

from collections.abc import Callable

import numpy as np

_FEW = 5  # points: the function is had of each
_NOISE = 0.1  # of what may be missed: how wrong the function's values may be
_PLACES = np.linspace(0, 1, 5)
_QUARTIC = np.linalg.inv(np.vander(_PLACES, increasing=True))  # its coefficients, by its values there
_PARABOLA = np.array([[3, 6, -1], [-1, 6, 3]]) / 8  # its values at 1/4 and 3/4, by those at 0, 1/2 and 1


def summed(function: Callable[[float, float], float], x: np.ndarray, weights: np.ndarray,
           miss: float) -> float:
    """The sum of weights times the function of x; x float64 (N,) rises, weights (N,) are not negative.

    function  of x, and of how wrong it may be
    miss      of an interval: by how much its sum may be wrong

    Of x in an interval the function is a quartic through five points where a parabola through three comes
    near enough to the other two; else the interval is halved. The quartic is nearer still.
    """
    known, total, waiting = {}, 0.0, [(0, len(x))] if len(x) else []

    def value(at, weight):
        if at not in known:
            known[at] = function(at, _NOISE * miss / weight)
        return known[at]

    while waiting:
        low, high = waiting.pop()
        start, width, weight = x[low], x[high - 1] - x[low], weights[low:high].sum()
        if width == 0:
            total += value(start, weight) * weight
            continue
        if high - low <= _FEW:
            total += sum(value(x[i], weights[i]) * weights[i] for i in range(low, high))
            continue
        values = np.array([value(start + width * place, weight) for place in _PLACES])
        if np.abs(values[1::2] - _PARABOLA @ values[::2]).max() * weight > miss:
            middle = low + int(np.searchsorted(x[low:high], start + width / 2))
            waiting += [(low, middle), (middle, high)]
            continue
        at = np.vander((x[low:high] - start) / width, 5, increasing=True)
        total += float(weights[low:high] @ (at @ (_QUARTIC @ values)))
    return float(total)
