"""Rates and optima over temperatures, and over numbers of candidates, as an SVG document without scripts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from dare_job.report.charts import line, text

SHOWN = (("iid", "rrs"), ("iid", "k_seq"), ("iid", "priority"), ("without_replacement", "rrs"),
         ("greedy", "greedy"))
_WIDTH, _HIGH, _LEFT, _RIGHT, _TOP, _APART = 760, 320, 64, 250, 40, 15
_COLOURS = {"iid": "#b2551f", "without_replacement": "#1f6fb2", "greedy": "#2b8a3e"}
_DASHES = {"rrs": "6 3", "k_seq": "2 3", "priority": "8 3 2 3", "greedy": ""}
_STYLE = Markup("<style>text { font: 12px sans-serif; fill: #333 } .title { font-weight: bold }"
                " .axis { stroke: #888 } .grid { stroke: #e4e4e4 } .lead { stroke: #ccc }"
                " svg { background: white } path { fill: none; stroke-width: 1.8 }</style>")


class _Line(NamedTuple):
    name: str
    colour: str
    dashes: str
    points: list[tuple[float, float]]


def draw(rows: Sequence[dict]) -> str | None:
    """Of the command's ``rows``, a panel where one number of candidates has several temperatures, or one
    temperature several numbers; None where there is nothing to draw.
    """
    panels = []
    for fixed, moving, title in (("drafts", "temperature", "{:g} candidates, over temperatures"),
                                 ("temperature", "drafts", "temperature {:g}, over candidates")):
        for value in dict.fromkeys(row[fixed] for row in rows):
            some = [row for row in rows if row[fixed] == value]
            if len({row[moving] for row in some}) > 1:
                panels.append((title.format(value), _lines(some, moving)))
    if not panels:
        return None
    height = len(panels) * (_HIGH + _TOP)
    parts = [part for number, (title, lines) in enumerate(panels)
             for part in _panel("Acceptance rate: " + title, lines, number * (_HIGH + _TOP) + _TOP)]
    return str(Markup('<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{}" width="{}" '
                      'height="{}" viewBox="0 0 {} {}">{}{}</svg>\n').format(
        "Acceptance rates of verification rules beside the optima of their draft laws", _WIDTH, height,
        _WIDTH, height, _STYLE, Markup("").join(parts)))


def _lines(rows: Sequence[dict], moving: str) -> list[_Line]:
    """Optima with whole lines and rates of their rules with broken ones, in the law's colour."""
    found = []
    for law, colour in _COLOURS.items():
        best = sorted({(row[moving], row["optimum"]) for row in rows if row["law"] == law})
        found.append(_Line(f"{law}: optimum", colour, "", best))
        for other, rule in SHOWN:
            points = sorted((row[moving], row["rate"]) for row in rows
                            if (row["law"], row["verifier"]) == (law, rule))
            if other == law != rule and points:  # the greedy rule is the optimum of its law
                found.append(_Line(f"{law}: {rule}", colour, _DASHES[rule], points))
    return [one for one in found if one.points]


def _panel(title: str, lines: Sequence[_Line], top: float) -> list[Markup]:
    base, right = top + _HIGH - 40, _WIDTH - _RIGHT
    xs = sorted({x for one in lines for x, _ in one.points})
    lowest = min(y for one in lines for _, y in one.points)
    low = int(lowest * 20) / 20
    at_x, at_y = _scale(xs[0], xs[-1], _LEFT, right), _scale(min(low, 0.95), 1.0, base, top + 6)
    parts = [text(_LEFT, top - 12, title, "title", "start"), line(_LEFT, base, right, base, "axis")]
    for step in range(round(min(low, 0.95) * 20), 21):
        parts += [line(_LEFT, at_y(step / 20), right, at_y(step / 20), "grid"),
                  text(_LEFT - 6, at_y(step / 20) + 4, f"{step / 20:.2f}", "", "end")]
    parts += [text(at_x(x), base + 18, f"{x:g}") for x in xs]
    above = top - _APART
    for one in sorted(lines, key=lambda one: -one.points[-1][1]):
        path = " L".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in one.points)
        parts.append(Markup('<path d="M{}" stroke="{}" stroke-dasharray="{}"/>').format(
            path, one.colour, one.dashes))
        end = at_y(one.points[-1][1])
        above = max(end, above + _APART)
        parts += [line(right, end, right + 8, above, "lead"),
                  text(right + 12, above + 4, one.name, "", "start")]
    return parts


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * (value - low) / (high - low)
