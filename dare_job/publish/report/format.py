"""Numbers as the report writes them.

Counts in fixed bins and quantiles read from them: what a pass over many rows keeps of a column.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


def count(value: float | None) -> str:
    """1234567 -> 1,234,567; None: a dash."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def share(value: float | None) -> str:
    """As per cent, with the digits that a small share needs."""
    if value is None:
        return "–"
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 10 or not percent else f"{percent:.1f} %" if percent >= 0.1 \
        else f"{percent:.2g} %"


def seconds(value: float | None) -> str:
    """In the unit that fits: 0.4 s, 41 s, 12 min, 3.4 h, 5.2 days."""
    if value is None:
        return "–"
    for size, unit, upto in ((1, "s", 120), (60, "min", 120), (3600, "h", 72), (86400, "days", float("inf"))):
        scaled = value / size
        if scaled < upto:
            return f"{scaled:,.0f} {unit}" if scaled >= 10 or scaled == 0 else f"{scaled:.1f} {unit}"
    raise AssertionError


def milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g} ms" if value < 1000 else seconds(value / 1000)


def size(value: float | None) -> str:
    """Bytes, in powers of 1024."""
    if value is None:
        return "–"
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if value < 1024 or unit == units[-1]:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def of_kind(kind: str, value: float | None) -> str:
    """A measure's value; kind: count | rate | share | times."""
    return {"count": count, "rate": rate, "share": share, "times": times}[kind](value)

LONGEST = 256  # draft tokens accepted by one forward; more count as this many

_LEAST_MS, _DECADES, _A_DECADE = 0.01, 10, 100  # 10 us to 28 hours, each bin 2.3 % wider than the one before


@dataclass(frozen=True)
class Histogram:
    """Counts of the values from each edge up to the next: counts (B,), edges (B + 1,) ascending.

    whole  the values are whole numbers, each a bin of its own
    """

    counts: np.ndarray
    edges: np.ndarray
    whole: bool = False

    @cached_property
    def total(self) -> int:
        return int(self.counts.sum())

    def quantile(self, share: float) -> float | None:
        """The value that ``share`` of all do not pass, within one bin; None: there are no values."""
        if not self.total:
            return None
        below = np.cumsum(self.counts)
        at = int(np.searchsorted(below, max(share * self.total, 1e-9)))
        if self.whole:
            return float(self.edges[at])
        inside = (share * self.total - (below[at] - self.counts[at])) / self.counts[at]
        return float(self.edges[at] + inside * (self.edges[at + 1] - self.edges[at]))

    def mean(self) -> float | None:
        """Exact for whole numbers; None: there are no values."""
        at = self.edges[:-1] if self.whole else (self.edges[:-1] + self.edges[1:]) / 2
        return float(self.counts @ at) / self.total if self.total else None

    def coarse(self, step: int) -> "Histogram":
        """Every ``step`` bins made one."""
        starts = np.arange(0, len(self.counts), step)
        return Histogram(np.add.reduceat(self.counts, starts), self.edges[np.append(starts, -1)])


def lengths(counts: np.ndarray) -> Histogram:
    """Of accepted draft tokens, from counts of 0 ... LONGEST."""
    return Histogram(counts, np.arange(LONGEST + 2, dtype=float), whole=True)


def times_histogram(counts: np.ndarray) -> Histogram:
    """Of milliseconds, from counts of ``time_bins``."""
    edges = _LEAST_MS * 10 ** (np.arange(TIME_BINS + 1) / _A_DECADE)
    return Histogram(counts, edges)


TIME_BINS = _DECADES * _A_DECADE


def time_bins(milliseconds: np.ndarray) -> np.ndarray:
    """The bin of each time, int64; what is outside goes to the first or last."""
    scaled = np.log10(np.maximum(milliseconds, _LEAST_MS) / _LEAST_MS) * _A_DECADE
    return np.clip(scaled.astype(np.int64), 0, TIME_BINS - 1)
