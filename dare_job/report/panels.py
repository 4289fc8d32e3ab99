"""Lines over numbers, panel under panel, as an SVG document of its own without scripts."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from dare_job.report.charts import line, text

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
