"""Draft budget: how many draft nodes each row gets in a forward pass.

The goal is the most tokens per millisecond over a whole run. With rho the recent throughput in tokens per
millisecond, a step keeps the n most probable nodes of the batch that maximize

    sum of their probabilities - rho * ms(rows, n)

(Dinkelbach's method for a ratio: Dinkelbach 1967, "On nonlinear fractional programming"). If drafts do not
pay, n is 0 and drafting pauses for some steps. A node's probability is the score of its draft, calibrated by
the acceptance of nodes with similar scores in this run. This adapts to relaxed rules and to pools with
overconfident scores. The cost of drafts beside the forward pass is estimated from steps with and without
drafts. Strict text does not depend on the budget.
"""

import math
from collections.abc import Callable

import numba
import numpy as np

from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model.paged.inputs import max_width
from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.result import VerificationResult
from pools.tree import DraftBatch

_MAX_ROW_NODES, _MAX_FORWARD_NODES = 64, 512  # per row, and per forward pass of few rows
_INITIAL_WIDTH, _MIN_WIDTH = 64, 16  # nodes per row
_WIDTH_DECAY = 0.9  # per step
_BINS = 24  # of scores, two per octave
_PRIOR_ACCEPTED = 2.0  # pseudo-count: accepted nodes at which a bin's calibration has weight 0.5
_WINDOW = 500.0  # expected accepted nodes of a bin at which its counts are halved
_LINE_DECAY = 0.99  # per step, of the cost of drafting a node
_WARM_UP_POINTS, _MAX_OUTLIER = 3, 4.0
_COUNT_DECAY = 0.9995  # per step: drafts that have not been used for long are tried again
_MEAN_DECAY = 0.95  # per step
_OVERHEAD_DECAY = 0.8  # per step with a similar number of drafts, of which there are few
_OCTAVES = 32  # of the number of nodes
_PROBE_DECAY = 0.7  # of the gain of drafting, for a step after a pause
_MAX_PAUSE = 32  # steps
_MIN_SCORE = 1e-3  # nodes with a lower score are never drafted
_BOUND_MARGIN = 0.35  # of the last step's lowest kept probability: the next step drafts no nodes below it


def max_row_nodes(rows: int, paged: bool = False) -> int:
    """Return the default maximum of nodes per row.

    Few rows may have hundreds of nodes per forward pass, which a GPU computes for little. ``paged``: whether
    passes have static shapes, in which the widest row's tree is the size of all.
    """
    return max_width(rows) - 1 if paged else max(_MAX_ROW_NODES, _MAX_FORWARD_NODES // rows)


class AdaptiveBudget:
    """Distributes draft nodes among rows, for engines with the same model and device.

    Parameters
    ----------
    curve : LatencyCurve
        Latency of a forward pass.
    nodes : int
        Maximum number of nodes per row.
    round_up : callable, optional
        Queries that a forward pass computes for this many. More nodes then cost nothing up to that number.
    """

    def __init__(self, curve: LatencyCurve, nodes: int, round_up: Callable[[int], int] | None = None):
        self.nodes, self._round_up = nodes, round_up
        self._curve, self._ms = curve, {}
        self._expected, self._accepted = np.zeros(_BINS), np.zeros(_BINS)
        self._tokens, self._drafts = 1.0, 0.0  # means per row and step
        self._drafting = RecentLine()  # drafting ms against nodes, both per row
        self._bound = 0.0  # approximate lowest probability that the last step kept
        self._gains: dict[int, float] = {}  # mean net tokens gained by drafting, by octave of rows
        self._octave = self._pause = self._remaining_pause = 0
        self._widest = _INITIAL_WIDTH / 2  # recent maximum of nodes kept for one row
        # Milliseconds above the curve by octave of rows, then of nodes (0: none); NaN: not measured.
        self._overhead: dict[int, np.ndarray] = {}

    def min_score(self, rows: int) -> float | None:
        """Return the score below which no node of the next step can pay; None: do not draft."""
        if self._octave != rows.bit_length():  # costs differ, so drafting may pay again
            self._octave, self._pause, self._remaining_pause, self._bound = rows.bit_length(), 0, 0, 0.0
        if self._remaining_pause:
            self._remaining_pause -= 1
            return None
        ms, cheapest = self._costs(rows)
        cost = self._rho(ms, rows) * (cheapest + self._drafting.slope)  # tokens per node
        probability = max(cost, _BOUND_MARGIN * self._bound)
        return max(_MIN_SCORE, _min_score(probability, self._expected, self._accepted))

    @property
    def _draft_ms(self) -> float:
        """Recent drafting time per row."""
        return self._drafting.mean if self._drafting.mean < math.inf else 0.0

    @property
    def row_nodes(self) -> int:
        """Maximum nodes to draft per row: drafting more reads more of the row's pools."""
        nodes = _MIN_WIDTH
        while nodes < 1.5 * self._widest:
            nodes *= 2
        return min(nodes, self.nodes)

    def select(self, drafts: DraftBatch, draft_ms: float) -> DraftBatch:
        """Keep the nodes of a step that pay; ``draft_ms``: the time that drafting took."""
        rows = drafts.rows
        ms, _ = self._costs(rows)
        rho = self._rho(ms, rows)
        sizes = np.zeros(rows, np.int32)
        net, self._bound, widest = _select_nodes(
            drafts.scores, drafts.sizes, self._expected, self._accepted, ms, rho,
            self._overhead_by_nodes(self._octave), sizes)
        self._widest = max(widest, _WIDTH_DECAY * self._widest)
        self._drafting.add(sum(drafts.sizes.tolist()) / rows, draft_ms / rows)
        net = max(net - rho * self._draft_ms * rows, -rows * self._tokens)  # limits one slow step
        gain, decay = self._gains.get(self._octave, net), _MEAN_DECAY if self._pause == 0 else _PROBE_DECAY
        gain = self._gains[self._octave] = decay * gain + (1 - decay) * net
        self._pause = 0 if gain > 0 else min(_MAX_PAUSE, 2 * self._pause + 1)
        self._remaining_pause = self._pause
        return drafts._replace(sizes=sizes)

    def observe(self, tree: Tree, result: VerificationResult) -> None:
        """Update throughput and calibration from a verified step."""
        rows = len(result.counts)
        accepted = sum(result.counts.tolist())  # faster than numpy on few rows
        self._tokens += (1 - _MEAN_DECAY) * (1 + accepted / rows - self._tokens)
        self._drafts += (1 - _MEAN_DECAY) * (len(tree) / rows - 1 - self._drafts)
        if tree.depth:
            _update_calibration(tree.scores, tree.starts, result.counts, result.paths, self._expected,
                                self._accepted)

    def record_step(self, rows: int, nodes: int, ms: float) -> None:
        """Record the time of a step with ``nodes`` draft nodes in all, drafting excluded."""
        table, _ = self._costs(rows)
        expected = table[min(nodes, len(table) - 1)]
        overhead = ms - expected
        if overhead < expected:  # otherwise another process used the processor
            _update_overhead(self._overhead_by_nodes(rows.bit_length()), nodes.bit_length(), overhead)

    def _overhead_by_nodes(self, octave: int) -> np.ndarray:
        table = self._overhead.get(octave)
        if table is None:
            table = self._overhead[octave] = np.full(_OCTAVES, np.nan)
        return table

    def _costs(self, rows: int) -> tuple[np.ndarray, float]:
        """Return milliseconds by number of nodes in all, and the smallest increment of one more node."""
        costs = self._ms.get(rows)
        if costs is None:
            sizes = np.arange(rows * self.nodes + 1)
            if self._round_up is not None:
                sizes = np.array([self._round_up(rows + nodes) - rows for nodes in sizes.tolist()])
            ms = self._curve.forward_ms(rows, int(sizes[-1]))[sizes]
            costs = self._ms[rows] = ms, float(np.diff(ms).min(initial=np.inf))
        return costs

    def _rho(self, ms: np.ndarray, rows: int) -> float:
        """Return recent tokens per millisecond, at least those of steps without drafts."""
        nodes = min(len(ms) - 1, round(rows * self._drafts))
        overhead = np.fmax(self._overhead_by_nodes(rows.bit_length()), 0.0)  # 0 if not measured
        undrafted, forward = ms[0] + overhead[0], ms[nodes] + overhead[nodes.bit_length()]
        return rows * max(self._tokens / (forward + rows * self._draft_ms), 1 / undrafted)


class RecentLine:
    """Line through recent points: least squares with exponentially decaying weights.

    ``mean`` is a mean of y with faster decay. Noise only makes measurements longer, so the first point, which
    includes setup, is left out, the smallest of the next ones counts, and later ones are clipped.
    """

    def __init__(self):
        self.mean = math.inf
        self._x = self._y = self._xx = self._xy = 0.0  # means, then second moments
        self._points = 0

    def add(self, x: float, y: float) -> None:
        """Add a point. The unit of x and y is the caller's, for example nodes and milliseconds per row."""
        self._points += 1
        if self._points <= _WARM_UP_POINTS:
            self.mean = self.mean if self._points == 1 else min(self.mean, y)
            return
        y = min(y, _MAX_OUTLIER * self.mean)
        self.mean += (1 - _MEAN_DECAY) * (y - self.mean)
        share = max(1 - _LINE_DECAY, 1 / (self._points - _WARM_UP_POINTS))
        dx, dy = x - self._x, y - self._y
        self._x, self._y = self._x + share * dx, self._y + share * dy
        self._xx = (1 - share) * (self._xx + share * dx * dx)
        self._xy = (1 - share) * (self._xy + share * dx * dy)

    @property
    def slope(self) -> float:
        """Slope, limited to between 0 and that of the line from the origin to the mean."""
        if self._xx <= 0 or self._x <= 0:
            return 0.0
        return min(max(0.0, self._xy / self._xx), self._y / self._x)


@numba.njit(cache=True)
def _bin(score):
    return min(_BINS - 1, max(0, int(-2 * math.log2(max(score, 1e-9)))))


@numba.njit(cache=True)
def _calibration(b, expected, accepted):
    """Return accepted nodes per expected accepted node of a bin, with a prior of 1."""
    return (accepted[b] + _PRIOR_ACCEPTED) / (expected[b] + _PRIOR_ACCEPTED)


@numba.njit(cache=True)
def _min_score(value, expected, accepted):
    """Return the smallest score whose calibrated probability is at least ``value``."""
    for b in range(_BINS - 1, -1, -1):
        score = value / _calibration(b, expected, accepted)
        if score <= 2 ** (-0.5 * b):
            return score if b == _BINS - 1 else max(score, 2 ** (-0.5 * (b + 1)))
    return 1.0


@numba.njit(cache=True)
def _overhead_ms(overhead, octave):
    """Return measured milliseconds that drafts add to a step above the curve; 0 if not measured.

    Building trees, moving cache entries and attention as wide as the widest row take this time.
    """
    extra = overhead[octave] - overhead[0]
    return extra if extra > 0 else 0.0  # also for NaN


@numba.njit(cache=True)
def _update_overhead(overhead, octave, ms):
    """Record a step. Overheads that are not measured again decay to that of steps without drafts."""
    decay = _OVERHEAD_DECAY if octave else _MEAN_DECAY
    overhead[octave] = ms if np.isnan(overhead[octave]) else decay * overhead[octave] + (1 - decay) * ms
    for other in range(1, len(overhead)):
        if other != octave and overhead[other] > overhead[0]:
            overhead[other] -= (1 - _COUNT_DECAY) * (overhead[other] - overhead[0])


@numba.njit(cache=True)
def _select_nodes(scores, sizes, expected, accepted, ms, rho, overhead, kept):
    """Fill ``kept`` (R,), zeros before, with the sizes of the best prefixes of the rows' nodes.

    A row's nodes have descending scores, so the nodes above a bound are a prefix of them, and a tree.

    Returns
    -------
    tuple of float, float, int
        Tokens gained net of cost; lowest kept probability, halved if all nodes are kept; largest size.
    """
    rows = len(sizes)
    values = np.empty(sizes.sum(), np.float64)
    at = 0
    for r in range(rows):
        probability = 1.0
        for i in range(sizes[r]):
            score = scores[r, i]
            probability = min(probability, score * _calibration(_bin(score), expected, accepted))
            values[at] = probability
            at += 1
    order = np.sort(values)[::-1]
    gain, best, count, octave = 0.0, 0.0, 0, 0
    for n in range(min(len(order), len(ms) - 1)):
        gain += order[n]
        octave += (n + 1) >> octave > 0
        net = gain - rho * (ms[n + 1] - ms[0] + _overhead_ms(overhead, octave))
        if net > best:
            best, count = net, n + 1
    if count == 0:
        return 0.0, 0.0, 0
    bound = order[count - 1]
    at_bound = count - np.sum(values > bound)  # kept nodes at the bound itself
    at = widest = 0
    for r in range(rows):
        for _ in range(sizes[r]):
            if values[at] > bound:
                kept[r] += 1
            elif values[at] == bound and at_bound > 0:
                kept[r] += 1
                at_bound -= 1
            at += 1
        widest = max(widest, kept[r])
    return best, 0.5 * bound if count == len(order) else bound, widest


@numba.njit(cache=True)
def _update_calibration(scores, starts, counts, paths, expected, accepted):
    expected *= _COUNT_DECAY
    accepted *= _COUNT_DECAY
    for r in range(len(starts) - 1):
        for t in range(starts[r] + 1, starts[r + 1]):
            expected[_bin(scores[t])] += scores[t]
        for level in range(1, counts[r] + 1):
            accepted[_bin(scores[starts[r] + paths[r, level]])] += 1
    for b in range(len(expected)):
        if expected[b] > _WINDOW:
            expected[b] *= 0.5
            accepted[b] *= 0.5
