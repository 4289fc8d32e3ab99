"""Keeps the few rows of a stream with the largest keys."""

import heapq
from collections.abc import Callable

import numpy as np


class Top:
    """The ``size`` rows with the largest keys; rows with the key NaN are never among them."""

    def __init__(self, size: int):
        self._size = size
        self._heap: list[tuple[float, int, dict]] = []  # the smallest key first
        self._offered = 0

    def offer(self, keys: np.ndarray, row: Callable[[int], dict]) -> None:
        """Take a batch: keys (rows,); ``row(n)`` makes the n-th one, and is asked for few."""
        least = self._heap[0][0] if len(self._heap) == self._size else -np.inf
        found = np.flatnonzero(keys > least)
        if len(found) > self._size:
            found = found[np.argpartition(keys[found], -self._size)[-self._size:]]
        for n in found:
            self._offered += 1
            entry = (float(keys[n]), -self._offered, row(int(n)))
            if len(self._heap) < self._size:
                heapq.heappush(self._heap, entry)
            else:
                heapq.heappushpop(self._heap, entry)

    def rows(self) -> list[dict]:
        """Largest key first; among equals the one that came first."""
        return [row for _, _, row in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]
