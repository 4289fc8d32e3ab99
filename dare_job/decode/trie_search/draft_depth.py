"""Draft depth: how many trie levels to draft for the next forward pass, often none.

An accepted level saves its rows a forward pass. The value of that and the cost of reading the draft come from
a line fitted to the latency of the search's own forward passes, whose sizes vary enough because prompts are
long and beams few. Acceptance rates and drafting times are learned during the search. After a decision not to
draft, drafting is retried every ``_RETRY_FORWARDS`` passes, since the rates were learned from other rows.
"""

import numpy as np

_PRIOR_RATE, _PRIOR_ROWS = 0.7, 8.0  # initial acceptance rate of a level, and its weight in rows
_RATE_DECAY = 0.98  # of acceptance rates, per forward pass
_RETRY_FORWARDS = 64
_FIT_DECAY = 0.98  # of the fitted line, per forward pass
_MIN_FORWARDS, _MIN_DEVIATION = 6, 0.1  # for a fit: forward passes, relative deviation of their tokens


class LatencyFit:
    """Least-squares fit of milliseconds = a + b * tokens over recent forward passes, with exponential decay.
    """

    def __init__(self):
        self._forwards, self._sums = 0, (np.zeros((2, 2)), np.zeros(2))

    def record(self, queries: int, ms: float) -> None:
        """Add a forward pass that read ``queries`` tokens and took ``ms`` milliseconds."""
        features, self._forwards = np.array([1.0, queries]), self._forwards + 1
        squares, products = self._sums
        self._sums = (_FIT_DECAY * squares + np.outer(features, features),
                      _FIT_DECAY * products + ms * features)

    def ms(self, queries: float) -> float | None:
        """Predict milliseconds; None if there were too few forward passes or their sizes were too similar."""
        squares, products = self._sums
        count, mean = squares[0, 0], squares[0, 1] / max(squares[0, 0], 1e-9)
        if self._forwards < _MIN_FORWARDS or squares[1, 1] / count - mean**2 < (_MIN_DEVIATION * mean) ** 2:
            return None
        a, b = np.linalg.solve(squares, products)
        return max(0.0, float(a)) + max(0.0, float(b)) * queries


class DraftDepth:
    """Chooses the draft depth for one target and one drafter.

    Attributes
    ----------
    fit
        Latency of forward passes; nothing is drafted until it is usable.
    length
        Codes of an id.
    drafted, undrafted
        Forward passes so far with and without a draft, among those that could have one.
    """

    def __init__(self, length: int, nodes: int = 40):
        self.length, self.fit = length, LatencyFit()
        self._accepted = np.full(length, _PRIOR_RATE * _PRIOR_ROWS)
        self._verified = np.full(length, _PRIOR_ROWS)
        self._nodes = np.full(length, float(nodes))
        self._draft_ms = np.zeros(length)  # per drafted level
        self._skipped = 0
        self.drafted = self.undrafted = 0

    def depth(self, levels: np.ndarray, queries: int, beams: int) -> int:
        """Return the number of levels to draft, 0 for none.

        Parameters
        ----------
        levels : (S,)
            Number of codes of each row's beams.
        queries
            Tokens that the forward pass reads without a draft: prompts and unread beams.
        beams
            K, tokens per row that a saved forward pass would have read.
        """
        savings = self.expected_savings(levels, queries, beams)
        best = int(np.argmax(savings))
        if not best and len(savings) > 1:
            self._skipped += 1
            self.undrafted += 1
            if self._skipped >= _RETRY_FORWARDS:
                self._skipped, best = 0, len(savings) - 1
        return best

    def expected_savings(self, levels: np.ndarray, queries: int, beams: int) -> np.ndarray:
        """Return the milliseconds float64 (max_depth + 1,) that drafts of 0, 1, ... levels are expected to
        save.
        """
        rows = len(levels)
        undrafted, savings = self.fit.ms(queries), [0.0]
        if undrafted is None:
            return np.zeros(1)
        reach_probability, draft_nodes, saved, draft_ms = np.ones(rows), 0.0, 0.0, 0.0
        rates = self._accepted / self._verified
        for step in range(int(self.length - 1 - levels.min())):
            level = levels + step  # the drafted level has one code more
            inner = level < self.length - 1
            at = np.minimum(level, self.length - 1)
            reach_probability = np.where(inner, reach_probability * rates[at], 0)
            draft_nodes += float(self._nodes[at][inner].sum())
            draft_ms += self._draft_ms[step]
            saved += float(reach_probability.sum()) / rows * self.fit.ms(rows * beams)
            savings.append(saved - (self.fit.ms(queries + draft_nodes) - undrafted) - draft_ms)
        return np.array(savings)

    def record_draft(self, levels: np.ndarray, sizes: list[np.ndarray], ms: float) -> None:
        """Record a draft that took ``ms``; sizes are the nodes (S,) of each of its levels."""
        self.drafted += 1
        for step, counts in enumerate(sizes):
            self._draft_ms[step] += 0.2 * (ms / len(sizes) - self._draft_ms[step])
            at = np.minimum(levels + step, self.length - 1)
            for level in np.unique(at[counts > 0]):
                mean = counts[(at == level) & (counts > 0)].mean()
                self._nodes[level] += 0.2 * (mean - self._nodes[level])

    def record_accepted(self, before: np.ndarray, after: np.ndarray, depth: int) -> None:
        """Record that one forward pass with ``depth`` drafted levels took rows from ``before`` to ``after``
        (S,) codes.

        The last code is not counted: leaves need no drafts.
        """
        self._accepted *= _RATE_DECAY
        self._verified *= _RATE_DECAY
        for step in range(depth):
            verified = (after - before > step) & (before + step < self.length - 1)
            accepted = verified & (after - before > step + 1)
            np.add.at(self._verified, (before + step)[verified], 1)
            np.add.at(self._accepted, (before + step)[accepted], 1)
