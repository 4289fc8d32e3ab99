"""One node budget a forward: how many draft nodes each row gets.

A night is done soonest when the tokens that a millisecond gives are most over all its steps. With rho for
those of late, a step takes the n most probable nodes of the whole batch that maximise

    sum of their probabilities - rho * ms(rows, n)

(Dinkelbach's form of a ratio's maximum). Where drafts cannot pay that is n = 0, and then drafting itself
rests for a while. A node's probability is its draft's score, corrected by what scores of its size have been
worth in this run: so it is right for relaxed rules, and for pools that promise too much. What drafts add to a
step beside its forward is seen from steps of both kinds. None of this can change strict text.
"""

import math

import numba
import numpy as np

from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.result import VerificationResult
from pools.tree import DraftBatch

_MAX_ROW_NODES, _MAX_FORWARD_NODES = 64, 512  # nodes of a row, and of a forward of few rows
_INITIAL_WIDTH, _MIN_WIDTH = 64, 16
_WIDTH_DECAY = 0.9  # a step, of the widest row
_BINS = 24  # of scores, two an octave
_PRIOR_ACCEPTED = 2.0  # accepted nodes that a bin's scores are trusted like
_WINDOW = 500.0  # expected accepted nodes of a bin after which older ones count half
_LINE_DECAY = 0.99  # of what drafting a node takes, a step
_WARM_UP_POINTS, _MAX_OUTLIER = 3, 4.0
_COUNT_DECAY = 0.9995  # a step: what has not been drafted for long is tried again
_MEAN_DECAY = 0.95  # of averages, a step
_OVERHEAD_DECAY = 0.8  # of what steps with so many drafts take over the curve: they are few
_OCTAVES = 32  # of drafts in all
_PROBE_DECAY = 0.7  # of what drafting gains, where it was tried after a rest
_MAX_PAUSE = 32  # steps
_MIN_SCORE = 1e-3  # score of a node that is ever wanted
_BOUND_MARGIN = 0.7  # of the last step's least probability: nodes under it are not looked for in the next one


def max_row_nodes(rows: int) -> int:
    """Nodes of one row at most, where nothing else is said: of a GPU's forward hundreds are free."""
    return max(_MAX_ROW_NODES, _MAX_FORWARD_NODES // rows)


class DraftBudget:
    """Budgets for the steps of engines with one model and device."""

    def __init__(self, curve: LatencyCurve, nodes: int):
        """nodes: of one row, at most."""
        self.nodes = nodes
        self._curve, self._ms = curve, {}
        self._expected, self._accepted = np.zeros(_BINS), np.zeros(_BINS)
        self._tokens, self._drafts = 1.0, 0.0  # of a row and step, on average
        self._drafting = RecentLine()  # of nodes drafted and milliseconds, both of a row
        self._bound = 0.0  # least probability that the last step took, about
        self._gains: dict[int, float] = {}  # net, of a step that drafts, in tokens; by octaves of rows
        self._octave = self._rest = self._resting = 0
        self._widest = _INITIAL_WIDTH / 2  # nodes of the row that got the most, of late
        # Milliseconds over the curve, by octaves of rows and of nodes (0: none); nan: never seen.
        self._beyond: dict[int, np.ndarray] = {}

    def min_score(self, rows: int) -> float | None:
        """Score under which no node of the next step can pay; None: it should not draft."""
        if self._octave != rows.bit_length():  # other costs: what did not pay may do so now
            self._octave, self._rest, self._resting, self._bound = rows.bit_length(), 0, 0, 0.0
        if self._resting:
            self._resting -= 1
            return None
        ms, cheapest = self._costs(rows)
        least = max(self._rho(ms, rows) * (cheapest + self._drafting.slope), _BOUND_MARGIN * self._bound)
        return max(_MIN_SCORE, _min_score(least, self._expected, self._accepted))

    @property
    def _draft_ms(self) -> float:
        """Of a row, where it drafts."""
        return self._drafting.late if self._drafting.late < math.inf else 0.0

    @property
    def row_nodes(self) -> int:
        """Nodes of a row to draft, at most: the more are asked for, the more is read of its pools."""
        room = _MIN_WIDTH
        while room < 1.5 * self._widest:
            room *= 2
        return min(room, self.nodes)

    def select(self, drafts: DraftBatch, draft_ms: float) -> DraftBatch:
        """The nodes that are worth their place; ``draft_ms``: what drafting took."""
        rows = drafts.rows
        ms, _ = self._costs(rows)
        rho = self._rho(ms, rows)
        sizes = np.zeros(rows, np.int32)
        net, self._bound, widest = _select_nodes(
            drafts.scores, drafts.sizes, self._expected, self._accepted, ms, rho,
            self._over(self._octave), sizes)
        self._widest = max(widest, _WIDTH_DECAY * self._widest)
        self._drafting.add(sum(drafts.sizes.tolist()) / rows, draft_ms / rows)
        net = max(net - rho * self._draft_ms * rows, -rows * self._tokens)  # a slow moment is soon forgotten
        gain, kept = self._gains.get(self._octave, net), _MEAN_DECAY if self._rest == 0 else _PROBE_DECAY
        gain = self._gains[self._octave] = kept * gain + (1 - kept) * net
        self._rest = 0 if gain > 0 else min(_MAX_PAUSE, 2 * self._rest + 1)
        self._resting = self._rest
        return drafts._replace(sizes=sizes)

    def observe(self, tree: Tree, verdict: VerificationResult) -> None:
        """What a step's nodes were worth."""
        rows = len(verdict.counts)
        accepted = sum(verdict.counts.tolist())  # Python's takes less than numpy's on few rows
        self._tokens += (1 - _MEAN_DECAY) * (1 + accepted / rows - self._tokens)
        self._drafts += (1 - _MEAN_DECAY) * (len(tree) / rows - 1 - self._drafts)
        if tree.depth:
            _update_calibration(tree.scores, tree.starts, verdict.counts, verdict.paths, self._expected,
                                self._accepted)

    def record_step(self, rows: int, nodes: int, ms: float) -> None:
        """What a step with so many drafts took, drafting left out."""
        table, _ = self._costs(rows)
        over = ms - table[min(nodes, len(table) - 1)]
        if over < table[0]:  # else something else had the processor
            _update_overhead(self._over(rows.bit_length()), nodes.bit_length(), over)

    def _over(self, octave: int) -> np.ndarray:
        found = self._beyond.get(octave)
        if found is None:
            found = self._beyond[octave] = np.full(_OCTAVES, np.nan)
        return found

    def _costs(self, rows: int) -> tuple[np.ndarray, float]:
        """Milliseconds by drafts in all, and the least that one more of them adds."""
        found = self._ms.get(rows)
        if found is None:
            ms = self._curve.forward_ms(rows, rows * self.nodes)
            found = self._ms[rows] = ms, float(np.diff(ms).min(initial=np.inf))
        return found

    def _rho(self, ms: np.ndarray, rows: int) -> float:
        """Tokens a millisecond with so many rows, not below those of steps without drafts."""
        forward = ms[min(len(ms) - 1, round(rows * self._drafts))]
        return rows * max(self._tokens / (forward + rows * self._draft_ms), 1 / ms[0])


class RecentLine:
    """A line through points of late: least squares, of weights that fall with age.

    late  mean y of fewer points. Noise is what takes longer: the first point, which makes what stays, is left
          out, of the next ones the least counts, and of later ones no more than some times the mean
    """

    def __init__(self):
        self.late = math.inf
        self._x = self._y = self._xx = self._xy = 0.0  # means, and of deviations from them
        self._points = 0

    def add(self, x: float, y: float) -> None:
        self._points += 1
        if self._points <= _WARM_UP_POINTS:
            self.late = self.late if self._points == 1 else min(self.late, y)
            return
        y = min(y, _MAX_OUTLIER * self.late)
        self.late += (1 - _MEAN_DECAY) * (y - self.late)
        share = max(1 - _LINE_DECAY, 1 / (self._points - _WARM_UP_POINTS))
        dx, dy = x - self._x, y - self._y
        self._x, self._y = self._x + share * dx, self._y + share * dy
        self._xx = (1 - share) * (self._xx + share * dx * dx)
        self._xy = (1 - share) * (self._xy + share * dx * dy)

    @property
    def slope(self) -> float:
        """Not below 0, and no steeper than from the origin to the mean."""
        if self._xx <= 0 or self._x <= 0:
            return 0.0
        return min(max(0.0, self._xy / self._xx), self._y / self._x)


@numba.njit(cache=True)
def _bin(score):
    return min(_BINS - 1, max(0, int(-2 * math.log2(max(score, 1e-9)))))


@numba.njit(cache=True)
def _calibration(b, expected, accepted):
    """What a bin's scores have been worth so far, as a multiple of themselves."""
    return (accepted[b] + _PRIOR_ACCEPTED) / (expected[b] + _PRIOR_ACCEPTED)


@numba.njit(cache=True)
def _min_score(value, expected, accepted):
    """The least score that is worth this probability."""
    for b in range(_BINS - 1, -1, -1):
        score = value / _calibration(b, expected, accepted)
        if score <= 2 ** (-0.5 * b):
            return score if b == _BINS - 1 else max(score, 2 ** (-0.5 * (b + 1)))
    return 1.0


@numba.njit(cache=True)
def _overhead_ms(beyond, octave):
    """Milliseconds that so many drafts add to a step beside what the curve says, as far as steps with them
    and without any have been seen: trees to build, entries to move, attention as wide as the widest row.
    """
    over = beyond[octave] - beyond[0]
    return over if over > 0 else 0.0  # nan is not


@numba.njit(cache=True)
def _update_overhead(beyond, octave, over):
    """Add a step. What is not taken for long is by and by held to cost no more than a step without drafts."""
    kept = _OVERHEAD_DECAY if octave else _MEAN_DECAY
    beyond[octave] = over if np.isnan(beyond[octave]) else kept * beyond[octave] + (1 - kept) * over
    for other in range(1, len(beyond)):
        if other != octave and beyond[other] > beyond[0]:
            beyond[other] -= (1 - _COUNT_DECAY) * (beyond[other] - beyond[0])


@numba.njit(cache=True)
def _select_nodes(scores, sizes, expected, accepted, ms, rho, beyond, kept):
    """Sizes (R,) of the best prefixes of the rows' nodes into ``kept``, which holds zeros; returns tokens
    gained net of cost, the least probability that was taken, half of it where no node was left out, and the
    greatest size.

    A row's nodes come with falling scores, so that those over a bound are a prefix, and a tree.
    """
    rows = len(sizes)
    values = np.empty(sizes.sum(), np.float64)
    at = 0
    for r in range(rows):
        least = 1.0
        for i in range(sizes[r]):
            least = min(least, scores[r, i] * _calibration(_bin(scores[r, i]), expected, accepted))
            values[at] = least
            at += 1
    order = np.sort(values)[::-1]
    gain, best, count, octave = 0.0, 0.0, 0, 0
    for n in range(min(len(order), len(ms) - 1)):
        gain += order[n]
        octave += (n + 1) >> octave > 0
        net = gain - rho * (ms[n + 1] - ms[0] + _overhead_ms(beyond, octave))
        if net > best:
            best, count = net, n + 1
    if count == 0:
        return 0.0, 0.0, 0
    bound = order[count - 1]
    if count == len(order):
        kept[:] = sizes
        return best, 0.5 * bound, kept.max()
    equal = count - np.searchsorted(-order, -bound)  # of the bound itself, so many
    at = 0
    for r in range(rows):
        for _ in range(sizes[r]):
            if values[at] > bound:
                kept[r] += 1
            elif values[at] == bound and equal > 0:
                kept[r] += 1
                equal -= 1
            at += 1
    return best, bound, kept.max()


@numba.njit(cache=True)
def _update_calibration(scores, starts, counts, paths, expected, accepted):
    expected *= _COUNT_DECAY
    accepted *= _COUNT_DECAY
    for r in range(len(starts) - 1):
        for t in range(starts[r] + 1, starts[r + 1]):
            expected[_bin(scores[t])] += scores[t]
        for place in range(1, counts[r] + 1):
            accepted[_bin(scores[starts[r] + paths[r, place]])] += 1
    for b in range(len(expected)):
        if expected[b] > _WINDOW:
            expected[b] *= 0.5
            accepted[b] *= 0.5
