"""Plots as SVG documents without scripts: panels of lines and dots, one below the other."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from dare_job.publish.report.svg import circle, line, path, svg, text

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 310, 84, 250, 40, 40
_LABEL_PX = 14  # between two labels
_STYLE = Markup("<style>text { font: 12px sans-serif; fill: #333 } .title { font-weight: bold }"
                " .axis { stroke: #888 } .grid { stroke: #e4e4e4 } .bar { stroke-width: 1.5 }"
                " .reference { stroke: #888; stroke-dasharray: 4 3 }"
                " .lead { stroke: #bbb; stroke-dasharray: 1 3 }"
                " svg { background: white } path { fill: none; stroke-width: 1.8 }</style>")

Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """Points (x, y) with ascending x, joined by a line.

    Attributes
    ----------
    name
        Label; empty: none.
    dashes
        SVG dash lengths.
    """

    name: str
    colour: str
    dashes: str
    points: Points


class Dot(NamedTuple):
    """One point.

    Attributes
    ----------
    x_range
        Ends of a horizontal error bar.
    bound
        End of a vertical one.
    """

    name: str
    x: float
    y: float
    colour: str = "#1f6fb2"
    x_range: tuple[float, float] | None = None
    bound: float | None = None
    labelled: bool = True


class Axis(NamedTuple):
    """Ticks in ascending order, and the function that maps a value to its place on a linear axis."""

    ticks: list[float]
    place: Callable[[float], float] = float


def ticks(low: float, high: float) -> list[float]:
    """About six round numbers, from at most ``low`` to at least ``high``."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]


def linear(values: Iterable[float]) -> Axis:
    """Round ticks around all values."""
    values = list(values)
    return Axis(ticks(min(values), max(values)))


def from_zero(values: Iterable[float]) -> Axis:
    """Round ticks around all values and 0."""
    return linear([0.0, *values])


def at_values(values: Iterable[float]) -> Axis:
    """A tick at each value."""
    return Axis(sorted(set(values)))


def doubling(values: Iterable[float]) -> Axis:
    """A tick at each value of a base-2 logarithmic axis."""
    return Axis(sorted(set(values)), math.log2)


def shares(values: Iterable[float]) -> Axis:
    """Ticks every 0.05 up to 1."""
    return Axis([step / 20 for step in range(min(int(min(values) * 20), 19), 21)])


def decades(values: Iterable[float]) -> Axis:
    """Powers of ten from 1e-9; smaller values are drawn at the foot of the axis."""
    above = [value for value in values if value > 1e-9] or [1.0]
    low = max(math.floor(math.log10(min(above))), -9)
    high = max(math.ceil(math.log10(max(above))), low + 1)
    return Axis([10.0 ** power for power in range(low, high + 1)],
                lambda value: max(math.log10(max(value, 1e-12)), low))


class Panel(NamedTuple):
    """Lines and dots over two axes. reference: an x with a vertical line, and its label."""

    title: str
    lines: Sequence[Line] = ()
    dots: Sequence[Dot] = ()
    x: Callable[[Iterable[float]], Axis] = at_values
    y: Callable[[Iterable[float]], Axis] = shares
    reference: tuple[float, str] | None = None


def document(description: str, panels: Sequence[Panel], caption: str = "") -> str:
    """The panels as one SVG document; ``description`` is its accessible name."""
    height = len(panels) * (_HEIGHT + _TOP) + (30 if caption else 0)
    parts = [part for number, panel in enumerate(panels)
             for part in _panel(panel, number * (_HEIGHT + _TOP) + _TOP)]
    if caption:
        parts.append(text((_LEFT + _WIDTH - _RIGHT) / 2, height - 12, caption))
    return f"{svg(_WIDTH, height, description, [_STYLE, *parts], file=True)}\n"


def _panel(panel: Panel, top: float) -> list[Markup]:
    base, right = top + _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    points = [point for curve in panel.lines for point in curve.points]
    points += [(dot.x, dot.y) for dot in panel.dots]
    xs = [x for x, _ in points] + [x for dot in panel.dots for x in dot.x_range or ()]
    bounds = [dot.bound for dot in panel.dots if dot.bound is not None]
    x_axis = panel.x(xs + [panel.reference[0]] if panel.reference else xs)
    y_axis = panel.y([y for _, y in points] + bounds)
    at_x, at_y = _scale(x_axis, _LEFT, right), _scale(y_axis, base, top + 8)
    parts = [text(_LEFT, top - 12, panel.title, "title", "start")]
    for y in y_axis.ticks:
        parts += [line(_LEFT, at_y(y), right, at_y(y), "grid"),
                  text(_LEFT - 6, at_y(y) + 4, f"{y:.3g}", "", "end")]
    for x in x_axis.ticks:
        parts += [line(at_x(x), base, at_x(x), base + 4, "axis"), text(at_x(x), base + 18, f"{x:.4g}")]
    parts.append(line(_LEFT, base, right, base, "axis"))
    if panel.reference:
        x, name = panel.reference
        parts += [line(at_x(x), top, at_x(x), base, "reference"), text(at_x(x), top + 2, name)]
    ends = [(at_y(curve.points[-1][1]), right, curve.name) for curve in panel.lines if curve.name]
    named = [(at_y(dot.y), at_x(dot.x), dot.name) for dot in panel.dots if dot.labelled]
    parts += _labels([*ends, *named], right, base)
    parts += [path([(at_x(x), at_y(y)) for x, y in curve.points], stroke=curve.colour,
                   stroke_dasharray=curve.dashes) for curve in panel.lines]
    return parts + [part for dot in panel.dots for part in _dot(dot, at_x, at_y)]


def _scale(axis: Axis, start: float, end: float) -> Callable[[float], float]:
    low, high = axis.place(axis.ticks[0]), axis.place(axis.ticks[-1])
    return lambda value: start + (end - start) * (axis.place(value) - low) / ((high - low) or 1.0)


def _dot(dot: Dot, at_x: Callable, at_y: Callable) -> list[Markup]:
    x, y = at_x(dot.x), at_y(dot.y)
    bars = []
    if dot.x_range:
        bars.append((at_x(dot.x_range[0]), y, at_x(dot.x_range[1]), y))
    if dot.bound is not None:
        end = at_y(dot.bound)
        bars += [(x, y, x, end), (x - 5, end, x + 5, end)]
    return [*(line(*bar, "bar", stroke=dot.colour) for bar in bars), circle(x, y, dot.colour, dot.name)]


def _labels(labels: Sequence[tuple[float, float, str]], right: float, base: float) -> list[Markup]:
    """Names (y, x, name) at the right edge without overlap, each with a line to its point."""
    labels = sorted(labels, key=lambda label: (label[0], -label[1]))
    heights, above = [], -math.inf
    for y, _, _ in labels:
        above = max(y, above + _LABEL_PX)
        heights.append(above)
    below = base - 4 + _LABEL_PX
    for number in reversed(range(len(labels))):
        below = heights[number] = min(heights[number], below - _LABEL_PX)
    parts = []
    for (y, x, name), height in zip(labels, heights, strict=True):
        parts += [line(x, y, right + 8, height, "lead"), text(right + 12, height + 4, name, "", "start")]
    return parts
