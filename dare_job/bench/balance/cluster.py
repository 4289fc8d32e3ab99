"""Task slots that decode shards: an engine's batch, refilled row by row, and Spark's order of tasks."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Engine:
    """What an engine takes: a forward of R rows ``base_ms + row_ms * R``, and ``token_ms`` a prompt's token.

    As a 7B model in bfloat16 has it about on a GPU of 2 TB/s with a few draft nodes a row.
    """

    batch_size: int = 32
    base_ms: float = 12.0
    row_ms: float = 0.2
    token_ms: float = 0.05

    def seconds(self, prompt: np.ndarray, expected: np.ndarray, steps: np.ndarray) -> tuple[float, float]:
        """Time of a shard's rows, and the share of busy slots over its steps.

        prompt, steps (N,): tokens and forwards of each row; expected (N,): the length by which those taken
        ahead are started, the longest first (``decode.refill``)
        """
        ahead, slots = max(4 * self.batch_size, 32), self.batch_size
        order = [row for start in range(0, len(steps), ahead)
                 for row in start + np.argsort(-expected[start : start + ahead], kind="stable")]
        ends: list[int] = []  # step at which each busy slot's row ends
        step = used = 0
        ms = self.token_ms * float(prompt.sum())
        for row in order:
            if len(ends) == slots:
                ms, step = self._until(ends[0], step, len(ends), ms)
                heapq.heappop(ends)
            heapq.heappush(ends, step + max(1, int(steps[row])))
            used += max(1, int(steps[row]))
        while ends:
            ms, step = self._until(ends[0], step, len(ends), ms)
            heapq.heappop(ends)
        return ms / 1e3, used / max(1, step * slots)

    def _until(self, end: int, step: int, rows: int, ms: float) -> tuple[float, int]:
        return ms + (end - step) * (self.base_ms + self.row_ms * rows), end


def schedule(seconds: Sequence[float], slots: int, speeds: Sequence[float]) -> np.ndarray:
    """Busy seconds of each slot, which takes the next shard, in their order, when it is free."""
    free = [(0.0, slot) for slot in range(slots)]
    busy = np.zeros(slots)
    for time in seconds:
        now, slot = heapq.heappop(free)
        busy[slot] += time / speeds[slot]
        heapq.heappush(free, (now + time / speeds[slot], slot))
    return busy
