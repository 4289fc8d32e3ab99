"""How deep the next forward is drafted: as deep as it pays by what forwards cost here, often not at all.

A drafted level that is accepted saves its rows a forward. What that is worth, and what reading the draft
costs, a latency curve says: a given one, or the line through this search's own forwards, which differ enough
among themselves, as prompts are long and beams few; how often a level is accepted, and what drafting it
takes, is learned on the way. Where drafting was found not to pay it is tried again now and then, for what is
learned was learned of other rows.
"""

import numpy as np

from dare_job.decode.engine.latency import LatencyCurve

_PRIOR_RATE, _PRIOR_ROWS = (
    0.7,
    8.0,
)  # a level's acceptance before anything is known, and rows that this counts as
_RATE_DECAY = 0.98  # of what was learned, a forward
_RETRY_FORWARDS = 64  # forwards
_FIT_DECAY, _MIN_FORWARDS, _MIN_DEVIATION = (
    0.98,
    6,
    0.1,
)  # of the line: fading, forwards at least, tokens' deviation


class LatencyFit:
    """Milliseconds = a + b * tokens by least squares over the forwards so far, older ones counting less."""

    def __init__(self):
        self._forwards, self._sums = 0, (np.zeros((2, 2)), np.zeros(2))

    def note(self, queries: int, ms: float) -> None:
        one, self._forwards = np.array([1.0, queries]), self._forwards + 1
        squares, products = self._sums
        self._sums = _FIT_DECAY * squares + np.outer(one, one), _FIT_DECAY * products + ms * one

    def ms(self, queries: float) -> float | None:
        """None: forwards were too few, or too much alike."""
        squares, products = self._sums
        count, mean = squares[0, 0], squares[0, 1] / max(squares[0, 0], 1e-9)
        if self._forwards < _MIN_FORWARDS or squares[1, 1] / count - mean**2 < (_MIN_DEVIATION * mean) ** 2:
            return None
        a, b = np.linalg.solve(squares, products)
        return max(0.0, float(a)) + max(0.0, float(b)) * queries


class DraftDepth:
    """What pays for one target and one drafter.

    curve   milliseconds of a forward; None: learned, and nothing is drafted until something is known
    length  codes of an id
    nodes   guess of the nodes that a drafted level has; learned too
    """

    def __init__(self, curve: LatencyCurve | None, length: int, nodes: int = 40):
        self.curve, self.length, self.line = curve, length, LatencyFit()
        self._passed, self._tried = np.full(length, _PRIOR_RATE * _PRIOR_ROWS), np.full(length, _PRIOR_ROWS)
        self._nodes = np.full(length, float(nodes))
        self._draft_ms = np.zeros(length)  # of a level, by its number in the draft
        self._skipped = 0
        self.drafted = self.plain = 0  # forwards so far, of those that could be drafted

    def ms(self, rows: int, queries: float) -> float | None:
        """Milliseconds of a forward of ``queries`` tokens in all; None: not known yet."""
        if self.curve is None:
            return self.line.ms(queries)
        more = max(0.0, queries - rows)
        steps = self.curve.forward_ms(rows, int(np.ceil(more)))
        return float(np.interp(more, np.arange(len(steps)), steps))

    def depth(self, levels: np.ndarray, queries: int, beams: int) -> int:
        """Levels to draft for rows whose beams have ``levels`` (S,) codes; 0: none.

        queries  tokens that the forward reads without a draft: prompts, and beams that were not read
        beams    K, which the forwards that are saved would read of each row
        """
        gains = self.gains(levels, queries, beams)
        best = int(np.argmax(gains))
        if not best and len(gains) > 1:
            self._skipped += 1
            self.plain += 1
            if self._skipped >= _RETRY_FORWARDS:
                self._skipped, best = 0, len(gains) - 1
        return best

    def gains(self, levels: np.ndarray, queries: int, beams: int) -> np.ndarray:
        """Milliseconds float64 (most + 1,) that drafts of 0, 1, ... levels are expected to save."""
        rows = len(levels)
        if self.ms(rows, queries) is None:
            return np.zeros(1)
        plain, found = self.ms(rows, queries), [0.0]
        reach, more, saved, draft_ms = np.ones(rows), 0.0, 0.0, 0.0
        rates = self._passed / self._tried
        for step in range(int(self.length - 1 - levels.min())):
            level = levels + step  # the level that is drafted has one code more
            inner = level < self.length - 1
            at = np.minimum(level, self.length - 1)
            reach = np.where(inner, reach * rates[at], 0)
            more += float(self._nodes[at][inner].sum())
            draft_ms += self._draft_ms[step]
            saved += float(reach.sum()) / rows * self.ms(rows, rows * beams)
            found.append(saved - (self.ms(rows, queries + more) - plain) - draft_ms)
        return np.array(found)

    def note_draft(self, levels: np.ndarray, sizes: list[np.ndarray], ms: float) -> None:
        """A draft took ``ms``; sizes: nodes (S,) of each of its levels."""
        self.drafted += 1
        for step, counts in enumerate(sizes):
            self._draft_ms[step] += 0.2 * (ms / len(sizes) - self._draft_ms[step])
            at = np.minimum(levels + step, self.length - 1)
            for level in np.unique(at[counts > 0]):
                mean = counts[(at == level) & (counts > 0)].mean()
                self._nodes[level] += 0.2 * (mean - self._nodes[level])

    def note_passed(self, before: np.ndarray, after: np.ndarray, depth: int) -> None:
        """Rows went from ``before`` codes to ``after`` (S,) by one forward with ``depth`` drafted levels.

        That the last code is accepted says nothing: leaves need no drafts.
        """
        self._passed *= _RATE_DECAY
        self._tried *= _RATE_DECAY
        for step in range(depth):
            tried = (after - before > step) & (before + step < self.length - 1)
            passed = tried & (after - before > step + 1)
            np.add.at(self._tried, (before + step)[tried], 1)
            np.add.at(self._passed, (before + step)[passed], 1)
