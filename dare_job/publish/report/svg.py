"""Small charts as inline SVG: colours come from the page's style sheet, each says in words what it shows.

No text of the data is drawn unescaped: everything goes through ``markupsafe``.

Lines over numbers, panel under panel, as an SVG document of its own without scripts.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from dare_job.publish.report import format
from dare_job.publish.report.format import Histogram

_SHOWN = 24  # accepted tokens with a bar of their own; the last one holds all above


def svg(width: int, height: int, says: str, parts: Sequence[Markup], name: str = "") -> Markup:
    return Markup('<svg class="{}" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}">'
                  "<title>{}</title>{}</svg>").format(
        name, says, width, height, width, height, says, Markup("").join(parts))


def rect(x: float, y: float, width: float, height: float, name: str, says: str = "") -> Markup:
    title = Markup("<title>{}</title>").format(says) if says else ""
    return Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>').format(
        name, x, y, width, height, title)


def line(x1: float, y1: float, x2: float, y2: float, name: str) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        name, x1, y1, x2, y2)


def text(x: float, y: float, content: str, name: str = "", anchor: str = "middle") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        name, x, y, anchor, content)


def nights(title: str, dates: Sequence[str], values: Sequence[float | None], shown: Sequence[str],
           width: int = 200, height: int = 58) -> Markup:
    """One bar a date from zero up, the last one tonight's; a date without the figure has a dot."""
    top, step = max((value for value in values if value), default=0), width / max(len(values), 4)
    base = height - 13
    parts = [line(0, base + 0.5, width, base + 0.5, "axis"),
             text(step * len(values) - 1.5, height - 2, "tonight", "tick", "end")]
    if len(values) > 2:
        parts.append(text(1.5, height - 2, dates[0], "tick", "start"))
    for n, (date, value, words_) in enumerate(zip(dates, values, shown, strict=True)):
        tall = (base - 1) * value / top if value and top else 0
        name = "tonight" if n == len(values) - 1 else "past"
        if value is None:
            parts.append(text(step * (n + 0.5), base - 3, "·", "tick"))
        else:
            parts.append(rect(step * n + 1.5, base - max(tall, 1), max(step - 3, 1), max(tall, 1), name,
                              f"{date}: {words_}"))
    says = f"{title}: " + ", ".join(f"{date} {value}" for date, value in zip(dates, shown, strict=True))
    return svg(width, height, says, parts, "nights")


def accepted(found: Histogram, longest: int, width: int = 420, height: int = 56) -> Markup:
    """Share of forwards by accepted draft tokens, 0 to ``longest``; the last bar holds all above."""
    counts = [int(value) for value in found.counts[:longest]] + [int(found.counts[longest:].sum())]
    top, step, base = max(counts), width / len(counts), height - 13
    parts, every = [line(0, base, width, base, "axis")], 1 if longest <= 12 else 4
    for n, value in enumerate(counts):
        label = f"{n} or more" if n == longest else str(n)
        tall = (base - 1) * value / top if top else 0
        parts.append(rect(step * n + 1, base - tall, max(step - 2, 1), tall, "bar",
                          f"{label} accepted: {format.share(value / max(found.total, 1))} of the steps"))
        if n % every == 0 or n == longest:
            parts.append(text(step * (n + 0.5), height - 2, f"{n}+" if n == longest else str(n), "tick"))
    half, most = (format.count(found.quantile(share)) for share in (0.5, 0.9))
    says = (f"Draft tokens accepted a step: {format.share(counts[0] / max(found.total, 1))} of the steps "
            f"accepted none, half at most {half}, 90 % at most {most}")
    return svg(width, height, says, parts, "histogram")


def longest_shown(found: Sequence[Histogram]) -> int:
    """Where the axis of several ``accepted`` charts ends: behind 99.5 % of all, between 4 and 24."""
    ends = [value.quantile(0.995) for value in found if value.total]
    return int(min(max([4, *ends]), _SHOWN))


def latency(found: Histogram, span: tuple[int, int], width: int = 420, height: int = 56) -> Markup:
    """Texts by milliseconds on a log axis over the bins ``span``, with the median and the 99th percentile."""
    step, (first, last) = 5, span
    shown = Histogram(found.counts[first:last], found.edges[first:last + 1]).coarse(step)
    low, high, base = math.log10(found.edges[first]), math.log10(found.edges[last]), height - 13

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
    quantiles = [found.quantile(share) for share in (0.5, 0.99)]
    parts += [line(at(value), 0, at(value), base, f"mark {name}")
              for value, name in zip(quantiles, ("middle", "high"), strict=True) if value]
    median, high_value = map(format.milliseconds, quantiles)
    return svg(width, height, f"Worker time a text: median {median}, 99th percentile {high_value}", parts,
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


def latency_span(found: Sequence[Histogram]) -> tuple[int, int]:
    """The bins that several ``latency`` charts share: from the first one filled to the last, tens of bins."""
    filled = [n for value in found for n in value.counts.nonzero()[0]]
    if not filled:
        return 0, 100
    first, last = min(filled) // 10 * 10, (max(filled) // 10 + 1) * 10
    return first, max(last, first + 50)


def against(ours: float, plain: float, width: int = 420) -> Markup:
    """Two bars of worker time: tonight's and what plain decoding would have taken."""
    top, scale = max(ours, plain), width - 90
    parts = []
    for n, (name, value) in enumerate((("tonight", ours), ("past", plain))):
        wide = max(scale * value / top, 1)
        parts += [rect(0, 30 * n + 4, wide, 20, name),
                  text(wide + 6, 30 * n + 18, format.seconds(value), "value", "start")]
    return svg(
        width,
        58,
        f"Worker time tonight {format.seconds(ours)}, plain decoding {format.seconds(plain)}",
        parts,
        "against",
    )

_WIDTH, _HIGH, _LEFT, _RIGHT, _TOP, _APART = 760, 320, 64, 250, 40, 15

_STYLE = Markup("<style>text { font: 12px sans-serif; fill: #333 } .title { font-weight: bold }"
                " .axis { stroke: #888 } .grid { stroke: #e4e4e4 } .lead { stroke: #ccc }"
                " svg { background: white } path { fill: none; stroke-width: 1.8 }</style>")


class Line(NamedTuple):
    """points ascend by x; y is at most 1."""

    name: str
    colour: str
    dashes: str
    points: list[tuple[float, float]]


class Panel(NamedTuple):
    """doubling: a step to the right doubles x."""

    title: str
    lines: Sequence[Line]
    doubling: bool = False


def document(says: str, panels: Sequence[Panel]) -> str:
    height = len(panels) * (_HIGH + _TOP)
    parts = [part for number, panel in enumerate(panels)
             for part in _drawn(panel, number * (_HIGH + _TOP) + _TOP)]
    return str(Markup('<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{}" width="{}" '
                      'height="{}" viewBox="0 0 {} {}">{}{}</svg>\n').format(
        says, _WIDTH, height, _WIDTH, height, _STYLE, Markup("").join(parts)))


def _drawn(panel: Panel, top: float) -> list[Markup]:
    base, right = top + _HIGH - 40, _WIDTH - _RIGHT
    xs = sorted({x for one in panel.lines for x, _ in one.points})
    lowest = min(y for one in panel.lines for _, y in one.points)
    low = int(lowest * 20) / 20
    step_x = math.log2 if panel.doubling else float
    scale_x = _scale(step_x(xs[0]), step_x(xs[-1]), _LEFT, right)
    at_y = _scale(min(low, 0.95), 1.0, base, top + 6)
    parts = [text(_LEFT, top - 12, panel.title, "title", "start"), line(_LEFT, base, right, base, "axis")]
    for step in range(round(min(low, 0.95) * 20), 21):
        parts += [line(_LEFT, at_y(step / 20), right, at_y(step / 20), "grid"),
                  text(_LEFT - 6, at_y(step / 20) + 4, f"{step / 20:.2f}", "", "end")]
    parts += [text(scale_x(step_x(x)), base + 18, f"{x:g}") for x in xs]
    above = top - _APART
    for one in sorted(panel.lines, key=lambda one: -one.points[-1][1]):
        path = " L".join(f"{scale_x(step_x(x)):.1f},{at_y(y):.1f}" for x, y in one.points)
        parts.append(Markup('<path d="M{}" stroke="{}" stroke-dasharray="{}"/>').format(
            path, one.colour, one.dashes))
        end = at_y(one.points[-1][1])
        above = max(end, above + _APART)
        parts += [line(right, end, right + 8, above, "lead"),
                  text(right + 12, above + 4, one.name, "", "start")]
    return parts


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * (value - low) / (high - low)
