"""Sums over candidates without replacement, one inside another, where all that a token means to those behind
it is its q: what is left of q is all that the law of the next one asks of it.

So an inner sum is a function of the q of the tokens before. It is had of each of the heaviest tokens, and
interpolated between the others, the light ones. There the inner sum runs over these once more, and whoever
sums takes them off.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dare_job.decode.sampling.interpolated import summed
from dare_job.decode.sampling.rejection import Sorted

HEAVY = 8  # tokens for themselves, more than a path has
MISS = 1e-9  # of the sum over an interval of light tokens, or of a heavy one


class Token(NamedTuple):
    """Of a path: its q, and its place among the tokens, -1 of a light one."""

    q: float
    place: int


Path = tuple[Token, ...]


class Rising:
    """Tokens by rising q: q, p and p / q, each (m,). All but the heaviest few are ``light``."""

    def __init__(self, tokens: Sorted):
        by_q = np.argsort(tokens.q, kind="stable")
        self.q, self.p, self.ratio = tokens.q[by_q], tokens.p[by_q], tokens.ratio[by_q]
        self.light = max(len(self.q) - HEAVY, 0)
        self._heavy, self._tail = self.q[self.light :], float(self.q[: self.light].sum())
        self._others = 1 - np.eye(len(self._heavy))

    def left(self, path: Path) -> float:
        """1 less the q of a path: a sum of what is heavy, so that it keeps its digits."""
        heavy, light = self._left(path)
        return float(heavy.sum() + light)

    def lefts_of_heavy(self, path: Path) -> np.ndarray:
        """1 less the q of a path and of each heavy token, by rising q; 0 of the path's own."""
        heavy, light = self._left(path)
        return np.where(heavy > 0, self._others @ heavy + light, 0.0)

    def _left(self, path: Path) -> tuple[np.ndarray, float]:
        heavy, light = self._heavy.copy(), self._tail
        for token in path:
            if token.place < 0:
                light -= token.q
            else:
                heavy[token.place - self.light] = 0
        return heavy, light

    def lefts(self, path: Path) -> np.ndarray:
        """1 less the q of a path and of each token (m,)."""
        found = self.left(path) - self.q
        found[self.light :] = self.lefts_of_heavy(path)
        return found

    def summed(self, function: Callable[[Token, float], float], weights: np.ndarray,
               miss: float = MISS) -> float:
        """The sum of a function of a token, and of how wrong it may be, with weights (m,)."""
        heavy = sum(weights[x] * function(Token(self.q[x], x), miss / weights[x])
                    for x in range(self.light, len(self.q)) if weights[x] > 0)
        some = np.flatnonzero(weights[: self.light] > 0)
        return float(heavy) + summed(lambda q, wrong: function(Token(q, -1), wrong), self.q[some],
                                     weights[some], miss)
