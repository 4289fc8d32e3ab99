"""SVG elements, and the report's small inline charts, whose colours are in the page's style sheet.

Every chart has an accessible name that states what it shows. ``markupsafe`` escapes all text of the data.
"""

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from dare_job.publish.report import format
from dare_job.publish.report.format import Histogram

_MAX_BARS = 24  # numbers of accepted tokens with a bar of their own
_WIDTH, _HEIGHT, _BASE = 420, 58, 45  # of a chart, and of the line under its bars


def element(tag: str, content: str = "", **attributes: object) -> Markup:
    """An SVG element without its empty attributes; ``stroke_width`` becomes stroke-width, numbers get .1f."""
    written = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"),
                                  value if isinstance(value, str) else f"{value:.1f}")
        for name, value in attributes.items() if value != "")
    return Markup("<{0}{1}>{2}</{0}>" if content else "<{0}{1}/>").format(tag, written, content)


def svg(width: int, height: int, description: str, parts: Sequence[Markup], name: str = "",
        file: bool = False) -> Markup:
    """A chart; ``name`` is its CSS class. file: a document by itself, not a part of a page."""
    title = "" if file else element("title", description)
    return element("svg", Markup("").join([title, *parts]), class_=name,
                   xmlns="http://www.w3.org/2000/svg" if file else "", role="img", aria_label=description,
                   width=str(width), height=str(height), viewBox=f"0 0 {width} {height}")


def rect(x: float, y: float, width: float, height: float, name: str, tooltip: str = "") -> Markup:
    return element("rect", _title(tooltip), class_=name, x=x, y=y, width=width, height=height)


def line(x1: float, y1: float, x2: float, y2: float, name: str, **more: str) -> Markup:
    return element("line", class_=name, x1=x1, y1=y1, x2=x2, y2=y2, **more)


def circle(x: float, y: float, colour: str, tooltip: str) -> Markup:
    return element("circle", _title(tooltip), cx=x, cy=y, r="4", fill=colour)


def text(x: float, y: float, content: str, name: str = "", anchor: str = "middle") -> Markup:
    return element("text", content, class_=name, x=x, y=y, text_anchor=anchor)


def path(points: Iterable[tuple[float, float]], name: str = "", tooltip: str = "", **more: str) -> Markup:
    """Points joined by lines."""
    return element("path", _title(tooltip), class_=name,
                   d="M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points), **more)


def _title(tooltip: str) -> str:
    return element("title", tooltip) if tooltip else ""


def moved(x: float, y: float, parts: Sequence[Markup]) -> Markup:
    """Elements moved by (x, y)."""
    return element("g", Markup("").join(parts), transform=f"translate({x:.1f} {y:.1f})")


def _bar(x: float, width: float, height: float, name: str, tooltip: str) -> Markup:
    """A bar of a chart of _HEIGHT, on its base line. height: as a share of the highest bar."""
    tall = max((_BASE - 1) * height, 1) if height else 0
    return rect(x, _BASE - tall, max(width, 0.5), tall, name, tooltip)


def nights(title: str, dates: Sequence[str], values: Sequence[float | None], labels: Sequence[str]) -> Markup:
    """One bar per date, the last one for this run; a date without the value has a dot."""
    highest, step = max((value for value in values if value), default=1), 200 / max(len(values), 4)
    parts = [line(0, _BASE + 0.5, 200, _BASE + 0.5, "axis"),
             text(step * len(values) - 1.5, _HEIGHT - 2, "this run", "tick", "end")]
    if len(values) > 2:
        parts.append(text(1.5, _HEIGHT - 2, dates[0], "tick", "start"))
    described = [f"{date} {label}" for date, label in zip(dates, labels, strict=True)]
    for n, (value, tooltip) in enumerate(zip(values, described, strict=True)):
        if value is None:
            parts.append(text(step * (n + 0.5), _BASE - 3, "·", "tick"))
        else:
            name = "current" if n == len(values) - 1 else "past"
            parts.append(_bar(step * n + 1.5, step - 3, value / highest, name, tooltip))
    return svg(200, _HEIGHT, f"{title}: {', '.join(described)}", parts, "nights")


def trend(title: str, dates: Sequence[str], values: Sequence[float | None], labels: Sequence[str]) -> Markup:
    """A line over dates; a date without the value interrupts it. The newest value has a dot."""
    known = [value for value in values if value is not None]
    low, high = min([0.0, *known]), max([0.0, *known])
    step, scale = 194 / max(len(values) - 1, 1), (_BASE - 6) / ((high - low) or 1.0)
    parts, run = [line(0, _BASE + 0.5, 200, _BASE + 0.5, "axis")], []
    for n, value in enumerate([*values, None]):
        if value is not None:
            run.append((3 + step * n, _BASE - (value - low) * scale))
            continue
        if run:
            parts.append(path(run if len(run) > 1 else [*run, run[0]], "outline"))
        run = []
    for n, (value, label) in enumerate(zip(values, labels, strict=True)):
        if value is not None and (n == len(values) - 1 or len(values) <= 31):
            name = "current" if n == len(values) - 1 else "past"
            y = _BASE - (value - low) * scale
            parts.append(rect(3 + step * n - 2, y - 2, 4, 4, name, f"{dates[n]} {label}"))
    parts += [text(0, _HEIGHT - 2, dates[0], "tick", "start"),
              text(200, _HEIGHT - 2, dates[-1], "tick", "end")] if len(dates) > 1 else []
    return svg(200, _HEIGHT, f"{title} from {dates[0]} to {dates[-1]}, newest {labels[-1]}", parts, "nights")


def accepted(histogram: Histogram, longest: int) -> Markup:
    """Forward passes by accepted draft tokens, 0 to ``longest``; the last bar includes all above."""
    counts = [*histogram.counts[:longest].tolist(), int(histogram.counts[longest:].sum())]
    highest, step, total = max(counts), _WIDTH / len(counts), histogram.total
    parts = [line(0, _BASE, _WIDTH, _BASE, "axis")]
    for n, value in enumerate(counts):
        label = f"{n} or more" if n == longest else str(n)
        parts.append(_bar(step * n + 1, step - 2, value / highest, "bar",
                          f"{label} accepted: {format.share(value / total)} of the steps"))
        if n % (1 if longest <= 12 else 4) == 0 or n == longest:
            parts.append(text(step * (n + 0.5), _HEIGHT - 2, f"{n}+" if n == longest else str(n), "tick"))
    median, high = (format.count(histogram.quantile(share)) for share in (0.5, 0.9))
    description = (f"Draft tokens accepted per step: {format.share(counts[0] / total)} of the "
                   f"steps accepted none; median {median}, 90th percentile {high}")
    return svg(_WIDTH, _HEIGHT, description, parts, "histogram")


def longest_shown(histograms: Sequence[Histogram]) -> int:
    """End of the axis of several ``accepted`` charts: the 99.5th percentile, between 4 and 24."""
    ends = [histogram.quantile(0.995) for histogram in histograms if histogram.total]
    return int(min(max([4, *ends]), _MAX_BARS))


def latency(histogram: Histogram, span: tuple[int, int]) -> Markup:
    """Texts by milliseconds, with median and 99th percentile. span: first and last bin of the log axis."""
    shown = histogram.part(*span, step=5)
    low, high = math.log10(shown.edges[0]), math.log10(shown.edges[-1])

    def at(milliseconds: float) -> float:
        return _WIDTH * (math.log10(milliseconds) - low) / (high - low)

    parts = [line(0, _BASE, _WIDTH, _BASE, "axis")]
    for value, left, right in zip(shown.counts.tolist(), shown.edges, shown.edges[1:], strict=False):
        if value:
            tooltip = f"{format.milliseconds(left)} to {format.milliseconds(right)}: {value:,} texts"
            parts.append(_bar(at(left) + 0.5, at(right) - at(left) - 1, value / shown.counts.max(), "bar",
                              tooltip))
    for power in range(math.floor(low), math.ceil(high) + 1):
        for tick in (10.0 ** power * step for step in ((1,) if high - low > 2.5 else (1, 2, 5))):
            x = at(tick)
            if -0.5 <= x <= _WIDTH + 0.5:
                anchor = "start" if x < 14 else "end" if x > _WIDTH - 24 else "middle"
                parts += [line(x, _BASE, x, _BASE + 3, "axis"),
                          text(x, _BASE + 12, format.milliseconds(tick), "tick", anchor)]
    median, percentile = histogram.quantile(0.5), histogram.quantile(0.99)
    parts += [line(at(value), 0, at(value), _BASE, f"mark {name}")
              for value, name in ((median, "middle"), (percentile, "high"))]
    return svg(_WIDTH, _HEIGHT, f"Worker time per text: median {format.milliseconds(median)}, 99th "
                                f"percentile {format.milliseconds(percentile)}", parts, "histogram")


def latency_span(histograms: Sequence[Histogram]) -> tuple[int, int]:
    """First and last bin of the axis that several ``latency`` charts share, multiples of ten."""
    filled = [n for histogram in histograms for n in histogram.counts.nonzero()[0]]
    if not filled:
        return 0, 100
    first, last = min(min(filled) // 10 * 10, 950), (max(filled) // 10 + 1) * 10
    return first, max(last, first + 50)


def against(ours: float, baseline: float) -> Markup:
    """Worker seconds of this run, and of autoregressive decoding of the same texts."""
    parts = []
    for n, (name, value) in enumerate((("current", ours), ("past", baseline))):
        wide = max((_WIDTH - 90) * value / max(ours, baseline), 1)
        parts += [rect(0, 30 * n + 4, wide, 20, name),
                  text(wide + 6, 30 * n + 18, format.seconds(value), "value", "start")]
    return svg(_WIDTH, _HEIGHT, f"Worker time of this run {format.seconds(ours)}, autoregressive "
                                f"{format.seconds(baseline)}", parts, "against")
