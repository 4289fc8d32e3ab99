"""Formats numbers for the report; histograms with fixed bins and their quantiles."""

import numpy as np

from dare_job.observe.progress import duration


def count(value: float | None) -> str:
    """1234567 -> 1,234,567; None -> a dash."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Two decimals: 1,234.50; None -> a dash."""
    return "–" if value is None else f"{value:,.2f}"


def times(value: float | None) -> str:
    """A factor with two decimals: 1.50×; None -> a dash."""
    return "–" if value is None else f"{value:.2f}×"


def share(value: float | None) -> str:
    """As a percentage; small shares have more digits."""
    if value is None:
        return "–"
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 10 or not percent else f"{percent:.1f} %" if percent >= 0.1 \
        else f"{percent:.2g} %"


def seconds(value: float | None) -> str:
    """A duration of ``value`` seconds; None -> a dash."""
    return "–" if value is None else duration(value)


def money(value: float | None) -> str:
    """An amount in the user's currency: 1,240.50; small amounts with two significant digits: 0.0031."""
    if value is None:
        return "–"
    return f"{value:,.2f}" if abs(value) >= 0.1 or not value else f"{value:.2g}"


def milliseconds(value: float | None) -> str:
    """Three significant digits below a second: 12.3 ms; above, a duration; None -> a dash."""
    if value is None:
        return "–"
    return f"{value:.3g} ms" if value < 1000 else seconds(value / 1000)


LONGEST = 256  # accepted draft tokens of one forward pass; larger numbers go to this bin


class Histogram:
    """Counts (B,) of the values between consecutive edges (B + 1,), which ascend.

    Values outside the edges count in the first or last bin.

    Parameters
    ----------
    whole
        The values are integers, and each one from 0 has its own bin.
    """

    def __init__(self, edges: np.ndarray, whole: bool = False, counts: np.ndarray | None = None):
        self.edges, self.whole = edges, whole
        self.counts = np.zeros(len(edges) - 1, np.int64) if counts is None else counts

    def add(self, values: np.ndarray) -> None:
        """Count values (n,)."""
        bins = values if self.whole else np.searchsorted(self.edges, values, "right") - 1
        self.counts += np.bincount(np.clip(bins, 0, len(self.counts) - 1), minlength=len(self.counts))

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    def quantile(self, share: float) -> float | None:
        """The quantile at ``share``, accurate to one bin; None without values."""
        if not self.total:
            return None
        cumulative = np.cumsum(self.counts)
        index = int(np.searchsorted(cumulative, max(share * self.total, 1e-9)))
        if self.whole:
            return float(self.edges[index])
        inside = (share * self.total - (cumulative[index] - self.counts[index])) / self.counts[index]
        return float(self.edges[index] + inside * (self.edges[index + 1] - self.edges[index]))

    def mean(self) -> float | None:
        """The mean, exact for integers; None without values."""
        values = self.edges[:-1] if self.whole else (self.edges[:-1] + self.edges[1:]) / 2
        return float(self.counts @ values) / self.total if self.total else None

    def part(self, first: int, last: int, step: int) -> "Histogram":
        """The bins from ``first`` to before ``last``, every ``step`` of them merged into one."""
        starts = np.arange(first, last, step)
        return Histogram(self.edges[[*starts, last]], counts=np.add.reduceat(self.counts[:last], starts))


def accepted_histogram() -> Histogram:
    """Histogram of accepted draft tokens, 0 to LONGEST."""
    return Histogram(np.arange(LONGEST + 2.0), whole=True)


def latency_histogram() -> Histogram:
    """Histogram of milliseconds, 10 us to 28 hours; each bin is 2.3 % wider than the last."""
    return Histogram(np.geomspace(0.01, 1e8, 1001))
