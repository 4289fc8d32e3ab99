"""Formats numbers for the report; histograms with fixed bins and their quantiles."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


def count(value: float | None) -> str:
    """1234567 -> 1,234,567; None -> a dash."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def share(value: float | None) -> str:
    """As a percentage; small shares have more digits."""
    if value is None:
        return "–"
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 10 or not percent else f"{percent:.1f} %" if percent >= 0.1 \
        else f"{percent:.2g} %"


def seconds(value: float | None) -> str:
    """In a suitable unit: 0.4 s, 41 s, 12 min, 3.4 h, 5.2 days."""
    if value is None:
        return "–"
    for size, unit, end in ((1, "s", 120), (60, "min", 120), (3600, "h", 72), (86400, "days", float("inf"))):
        scaled = value / size
        if scaled < end:
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
    """Format the value of a measure. kind: count | rate | share | times."""
    return {"count": count, "rate": rate, "share": share, "times": times}[kind](value)


LONGEST = 256  # accepted draft tokens of one forward pass; larger numbers go to this bin
_MIN_MS, _DECADES, _PER_DECADE = 0.01, 10, 100  # 10 us to 28 hours; each bin is 2.3 % wider than the last


@dataclass(frozen=True)
class Histogram:
    """Counts (B,) of the values between consecutive edges (B + 1,), which ascend.

    whole : the values are integers, and each one has its own bin
    """

    counts: np.ndarray
    edges: np.ndarray
    whole: bool = False

    @cached_property
    def total(self) -> int:
        return int(self.counts.sum())

    def quantile(self, share: float) -> float | None:
        """The quantile at ``share``, accurate to one bin; None without values."""
        if not self.total:
            return None
        cumulative = np.cumsum(self.counts)
        at = int(np.searchsorted(cumulative, max(share * self.total, 1e-9)))
        if self.whole:
            return float(self.edges[at])
        inside = (share * self.total - (cumulative[at] - self.counts[at])) / self.counts[at]
        return float(self.edges[at] + inside * (self.edges[at + 1] - self.edges[at]))

    def mean(self) -> float | None:
        """The mean, exact for integers; None without values."""
        at = self.edges[:-1] if self.whole else (self.edges[:-1] + self.edges[1:]) / 2
        return float(self.counts @ at) / self.total if self.total else None

    def coarse(self, step: int) -> "Histogram":
        """Merge every ``step`` bins into one."""
        starts = np.arange(0, len(self.counts), step)
        return Histogram(np.add.reduceat(self.counts, starts), self.edges[np.append(starts, -1)])


def lengths(counts: np.ndarray) -> Histogram:
    """Histogram of accepted draft tokens, from the counts of 0 to LONGEST."""
    return Histogram(counts, np.arange(LONGEST + 2, dtype=float), whole=True)


def times_histogram(counts: np.ndarray) -> Histogram:
    """Histogram of milliseconds, from the counts of ``time_bins``."""
    edges = _MIN_MS * 10 ** (np.arange(TIME_BINS + 1) / _PER_DECADE)
    return Histogram(counts, edges)


TIME_BINS = _DECADES * _PER_DECADE


def time_bins(milliseconds: np.ndarray) -> np.ndarray:
    """The bin of each time, int64; times outside the range go to the first or last bin."""
    scaled = np.log10(np.maximum(milliseconds, _MIN_MS) / _MIN_MS) * _PER_DECADE
    return np.clip(scaled.astype(np.int64), 0, TIME_BINS - 1)
