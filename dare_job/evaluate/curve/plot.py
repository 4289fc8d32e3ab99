"""``curve.svg``: distance and AUC lost of each setting over its speed, with the bounds; without scripts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dare_job.evaluate.curve.table import Entry, QualityCurve
from dare_job.publish.report.svg import line, text

_WIDTH, _HIGH, _LEFT, _RIGHT, _TOP = 720, 300, 84, 150, 34
_APART = 14  # names, at least
_STYLE = Markup("""<style>
text { font: 12px sans-serif; fill: #333 } .title { font-weight: bold; font-size: 13px }
.axis { stroke: #888 } .grid { stroke: #e4e4e4 } .strict { stroke: #888; stroke-dasharray: 4 3 }
.lead { stroke: #bbb; stroke-dasharray: 1 3 }
.bar { stroke: #1f6fb2; stroke-width: 1.5 } .dot { fill: #1f6fb2 } svg { background: white }
</style>""")


@dataclass(frozen=True)
class _Point:
    """Speed, its least and most; value and bound, the latter None where there is none."""

    name: str
    speed: tuple[float, float, float]
    value: float
    bound: float | None


@dataclass(frozen=True)
class _Panel:
    title: str
    points: Sequence[_Point]
    log: bool


def draw(curve: QualityCurve) -> str:
    """The curve as an SVG document: a panel for cosine, and one for each CTR model."""
    relaxed = [entry for entry in curve.entries if entry.k is not None]
    panels = [_Panel(f"1 - cosine to strict text: mean, and bound at {curve.level:.0%} "
                     f"({curve.rows} rows)", [_cosine(entry) for entry in relaxed], log=True)]
    for model in relaxed[0].auc:
        panels.append(_Panel(f"AUC lost against strict text, {model}: mean, and bound at {curve.level:.0%} "
                             f"({curve.seeds} seeds)", [_loss(entry, model) for entry in relaxed], log=False))
    height = len(panels) * (_HIGH + _TOP) + 34
    parts = [part for number, panel in enumerate(panels) for part in _panel(panel, number)]
    parts.append(text(_LEFT + _plot_width() / 2, height - 12, "rows a second over those of strict (median of "
                      f"{curve.turns} turns, bar: least and most)"))
    return str(Markup('<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{}" width="{}" '
                      'height="{}" viewBox="0 0 {} {}">{}{}</svg>\n').format(
        f"Quality against speed of {len(relaxed)} settings of the relaxed rule", _WIDTH, height, _WIDTH,
        height, _STYLE, Markup("").join(parts)))


def _cosine(entry: Entry) -> _Point:
    return _Point(entry.name, entry.speed, 1 - entry.cosine.mean, 1 - entry.cosine.bound)


def _loss(entry: Entry, model: str) -> _Point:
    return _Point(entry.name, entry.speed, entry.auc[model].mean, entry.auc[model].bound)


def _plot_width() -> int:
    return _WIDTH - _LEFT - _RIGHT


def _panel(panel: _Panel, number: int) -> list[Markup]:
    top = number * (_HIGH + _TOP) + _TOP
    base = top + _HIGH - 50
    speeds = [value for point in panel.points for value in point.speed] + [1.0]
    xs = ticks(min(speeds), max(speeds))
    at_x = scale(xs[0], xs[-1], _LEFT, _WIDTH - _RIGHT)
    ys, at_y = _vertical(panel, base, top)
    parts = [text(_LEFT, top - 12, panel.title, "title", "start")]
    for y in ys:
        parts += [line(_LEFT, at_y(y), _WIDTH - _RIGHT, at_y(y), "grid"),
                  text(_LEFT - 6, at_y(y) + 4, f"{y:.3g}", "", "end")]
    for x in xs:
        parts += [line(at_x(x), base, at_x(x), base + 4, "axis"), text(at_x(x), base + 18, f"{x:.3g}")]
    parts += [line(_LEFT, base, _WIDTH - _RIGHT, base, "axis"), line(at_x(1), top, at_x(1), base, "strict"),
              text(at_x(1), top + 2, "strict")]
    return parts + _points(panel, at_x, at_y, base, top)


def _points(panel: _Panel, at_x: Callable, at_y: Callable, base: float, top: float) -> list[Markup]:
    """Dots at the means, bars to the bounds and over the turns, and a name for each on the right."""
    parts = _names(panel, at_x, at_y, base, top)
    for point in panel.points:
        x, y = at_x(point.speed[0]), at_y(point.value)
        parts.append(line(at_x(point.speed[1]), y, at_x(point.speed[2]), y, "bar"))
        if point.bound is not None:
            parts += [line(x, y, x, at_y(point.bound), "bar"),
                      line(x - 5, at_y(point.bound), x + 5, at_y(point.bound), "bar")]
        parts.append(Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>')
                     .format(x, y, point.name))
    return parts


def _names(panel: _Panel, at_x: Callable, at_y: Callable, base: float, top: float) -> list[Markup]:
    """Names in order of height, none over another or under the axis, each with a line to its dot."""
    dots = sorted((at_y(point.value), -at_x(point.speed[0]), point.name) for point in panel.points)
    heights, above = [], top - _APART
    for y, _, _ in dots:
        above = max(y, above + _APART)
        heights.append(above)
    below = base - 4 + _APART
    for number in reversed(range(len(dots))):
        below = heights[number] = min(heights[number], below - _APART)
    parts, right = [], _WIDTH - _RIGHT
    for (y, x, name), height in zip(dots, heights, strict=True):
        parts += [line(-x, y, right + 6, height, "lead"), text(right + 10, height + 4, name, "", "start")]
    return parts


def _vertical(panel: _Panel, base: float, top: float) -> tuple[list[float], Callable[[float], float]]:
    """Ticks and scale of the values and bounds; on a log scale what is 0 stands at its foot."""
    values = [value for point in panel.points for value in (point.value, point.bound) if value is not None]
    if not panel.log:
        ys = ticks(min(0.0, *values), max(0.0, *values))
        return ys, scale(ys[0], ys[-1], base, top + 8)
    above = [value for value in values if value > 1e-9] or [1.0]
    low = max(math.floor(math.log10(min(above))), -9)
    high = max(math.ceil(math.log10(max(above))), low + 1)
    at_power = scale(low, high, base, top + 8)
    return ([10.0 ** power for power in range(low, high + 1)],
            lambda value: at_power(max(math.log10(max(value, 1e-12)), low)))


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Where a value stands, of which ``low`` stands at ``start`` and ``high`` at ``end``."""
    return lambda value: start + (end - start) * (value - low) / (high - low)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from below ``low`` to above ``high``, about six of them."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]
