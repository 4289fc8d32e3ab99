"""SVG elements, and the report's small inline charts. The page's style sheet has the colours.

Every chart has an accessible name that states what it shows. ``markupsafe`` escapes all text of the data.
"""

import math
from collections.abc import Sequence

from markupsafe import Markup

from dare_job.publish.report import format
from dare_job.publish.report.format import Histogram

_MAX_BARS = 24  # numbers of accepted tokens with a bar of their own


def svg(width: int, height: int, description: str, parts: Sequence[Markup], name: str = "") -> Markup:
    """An inline chart; ``name`` is its CSS class."""
    return Markup('<svg class="{}" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}">'
                  "<title>{}</title>{}</svg>").format(
        name, description, width, height, width, height, description, Markup("").join(parts))


def rect(x: float, y: float, width: float, height: float, name: str, tooltip: str = "") -> Markup:
    title = Markup("<title>{}</title>").format(tooltip) if tooltip else ""
    return Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>').format(
        name, x, y, width, height, title)


def line(x1: float, y1: float, x2: float, y2: float, name: str) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        name, x1, y1, x2, y2)


def text(x: float, y: float, content: str, name: str = "", anchor: str = "middle") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        name, x, y, anchor, content)


def nights(title: str, dates: Sequence[str], values: Sequence[float | None], labels: Sequence[str],
           width: int = 200, height: int = 58) -> Markup:
    """One bar per date, the last one for this run; a date without the value has a dot."""
    top, step = max((value for value in values if value), default=0), width / max(len(values), 4)
    base = height - 13
    parts = [line(0, base + 0.5, width, base + 0.5, "axis"),
             text(step * len(values) - 1.5, height - 2, "this run", "tick", "end")]
    if len(values) > 2:
        parts.append(text(1.5, height - 2, dates[0], "tick", "start"))
    for n, (date, value, label) in enumerate(zip(dates, values, labels, strict=True)):
        tall = (base - 1) * value / top if value and top else 0
        name = "current" if n == len(values) - 1 else "past"
        if value is None:
            parts.append(text(step * (n + 0.5), base - 3, "·", "tick"))
        else:
            parts.append(rect(step * n + 1.5, base - max(tall, 1), max(step - 3, 1), max(tall, 1), name,
                              f"{date}: {label}"))
    described = ", ".join(f"{date} {label}" for date, label in zip(dates, labels, strict=True))
    return svg(width, height, f"{title}: {described}", parts, "nights")


def accepted(histogram: Histogram, longest: int, width: int = 420, height: int = 56) -> Markup:
    """Forward passes by accepted draft tokens, 0 to ``longest``; the last bar includes all above."""
    counts = [int(value) for value in histogram.counts[:longest]] + [int(histogram.counts[longest:].sum())]
    top, step, base, total = max(counts), width / len(counts), height - 13, max(histogram.total, 1)
    parts, every = [line(0, base, width, base, "axis")], 1 if longest <= 12 else 4
    for n, value in enumerate(counts):
        label = f"{n} or more" if n == longest else str(n)
        tall = (base - 1) * value / top if top else 0
        parts.append(rect(step * n + 1, base - tall, max(step - 2, 1), tall, "bar",
                          f"{label} accepted: {format.share(value / total)} of the steps"))
        if n % every == 0 or n == longest:
            parts.append(text(step * (n + 0.5), height - 2, f"{n}+" if n == longest else str(n), "tick"))
    median, high = (format.count(histogram.quantile(share)) for share in (0.5, 0.9))
    description = (f"Draft tokens accepted per step: {format.share(counts[0] / total)} of the "
                   f"steps accepted none; median {median}, 90th percentile {high}")
    return svg(width, height, description, parts, "histogram")


def longest_shown(histograms: Sequence[Histogram]) -> int:
    """End of the axis of several ``accepted`` charts: the 99.5th percentile, between 4 and 24."""
    ends = [histogram.quantile(0.995) for histogram in histograms if histogram.total]
    return int(min(max([4, *ends]), _MAX_BARS))


def latency(histogram: Histogram, span: tuple[int, int], width: int = 420, height: int = 56) -> Markup:
    """Texts by milliseconds, with median and 99th percentile. span: first and last bin of the log axis."""
    step, (first, last) = 5, span
    shown = Histogram(histogram.counts[first:last], histogram.edges[first:last + 1]).coarse(step)
    low, high = math.log10(histogram.edges[first]), math.log10(histogram.edges[last])
    base = height - 13

    def at(milliseconds: float) -> float:
        return width * (math.log10(milliseconds) - low) / (high - low)

    top = shown.counts.max() if shown.total else 1
    parts = [line(0, base, width, base, "axis")]
    for value, left, right in zip(shown.counts, shown.edges, shown.edges[1:], strict=False):
        if value:
            tall = max((base - 1) * value / top, 0.7)
            parts.append(
                rect(
                    at(left) + 0.5,
                    base - tall,
                    max(at(right) - at(left) - 1, 0.5),
                    tall,
                    "bar",
                    f"{format.milliseconds(left)} to {format.milliseconds(right)}: {value:,} texts",
                )
            )
    parts += _log_ticks(low, high, width, base, at)
    quantiles = [histogram.quantile(share) for share in (0.5, 0.99)]
    parts += [line(at(value), 0, at(value), base, f"mark {name}")
              for value, name in zip(quantiles, ("middle", "high"), strict=True) if value]
    median, high_value = map(format.milliseconds, quantiles)
    return svg(width, height, f"Worker time per text: median {median}, 99th percentile {high_value}", parts,
               "histogram")


def _log_ticks(low: float, high: float, width: int, base: float, at) -> list[Markup]:
    parts, steps = [], (1,) if high - low > 2.5 else (1, 2, 5)
    for decade in range(math.floor(low), math.ceil(high) + 1):
        for step in steps:
            value = step * 10.0 ** decade
            x = at(value)
            if -0.5 <= x <= width + 0.5:
                parts.append(line(x, base, x, base + 3, "axis"))
                anchor = "start" if x < 14 else "end" if x > width - 24 else "middle"
                parts.append(text(x, base + 12, format.milliseconds(value), "tick", anchor))
    return parts


def latency_span(histograms: Sequence[Histogram]) -> tuple[int, int]:
    """First and last bin of the axis that several ``latency`` charts share, multiples of ten."""
    filled = [n for histogram in histograms for n in histogram.counts.nonzero()[0]]
    if not filled:
        return 0, 100
    first, last = min(filled) // 10 * 10, (max(filled) // 10 + 1) * 10
    return first, max(last, first + 50)


def against(ours: float, baseline: float, width: int = 420) -> Markup:
    """Worker seconds of this run, and of autoregressive decoding of the same texts."""
    top, scale = max(ours, baseline), width - 90
    parts = []
    for n, (name, value) in enumerate((("current", ours), ("past", baseline))):
        wide = max(scale * value / top, 1)
        parts += [rect(0, 30 * n + 4, wide, 20, name),
                  text(wide + 6, 30 * n + 18, format.seconds(value), "value", "start")]
    return svg(
        width,
        58,
        f"Worker time of this run {format.seconds(ours)}, autoregressive {format.seconds(baseline)}",
        parts,
        "against",
    )
