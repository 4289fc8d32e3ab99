"""Quality over speed as an SVG document without scripts: figure 4 of the DSBD paper, as ours."""

from collections.abc import Sequence

from markupsafe import Markup

from dare_job.bench.beam.methods import BEAM, DSBD
from dare_job.evaluate.curve.plot import scale, ticks
from dare_job.publish.report.svg import line, text

_WIDTH, _HIGH, _LEFT, _RIGHT, _TOP = 720, 300, 70, 190, 40
_COLOURS = {BEAM: "#b2551f", DSBD: "#1f6fb2"}
_OTHER = "#555"
_STYLE = Markup("<style>text { font: 12px sans-serif; fill: #333 } .title { font-weight: bold }"
                " .axis { stroke: #888 } .grid { stroke: #e4e4e4 } svg { background: white }"
                " path { fill: none; stroke-width: 1.8 }</style>")


def draw(rows: Sequence[dict], speed: str, about: str) -> str:
    """A panel for nats a token, one for true statements. speed: the rows' key of tokens a second."""
    height = 2 * (_HIGH + _TOP) + 30
    parts = [part for number, (key, title) in enumerate(
        (("nats", "log-likelihood under the target, nats a token"), ("true", "share of true statements")))
        for part in _panel(title, rows, speed, key, number * (_HIGH + _TOP) + _TOP)]
    parts.append(text(_LEFT + (_WIDTH - _LEFT - _RIGHT) / 2, height - 10, about))
    return str(Markup('<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{}" width="{}" '
                      'height="{}" viewBox="0 0 {} {}">{}{}</svg>\n').format(
        "Quality over speed of plain beam sampling, DSBD and sampling", _WIDTH, height, _WIDTH, height,
        _STYLE, Markup("").join(parts)))


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points (speed, quality) that no other one beats in both, by rising speed."""
    found: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not found or point[1] > found[-1][1]:
            found.append(point)
    return found[::-1]


def _panel(title: str, rows: Sequence[dict], speed: str, key: str, top: float) -> list[Markup]:
    base, right = top + _HIGH - 40, _WIDTH - _RIGHT
    xs = ticks(min(row[speed] for row in rows), max(row[speed] for row in rows))
    ys = ticks(min(row[key] for row in rows), max(row[key] for row in rows))
    at_x, at_y = scale(xs[0], xs[-1], _LEFT, right), scale(ys[0], ys[-1], base, top + 6)
    parts = [text(_LEFT, top - 12, title, "title", "start"), line(_LEFT, base, right, base, "axis")]
    for y in ys:
        parts += [line(_LEFT, at_y(y), right, at_y(y), "grid"),
                  text(_LEFT - 6, at_y(y) + 4, f"{y:.3g}", "", "end")]
    parts += [text(at_x(x), base + 18, f"{x:g}") for x in xs]
    for method, colour in _COLOURS.items():
        points = [(row[speed], row[key]) for row in rows if row["method"] == method]
        line_of = front(points) if method == DSBD else sorted(points)
        path = " L".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in line_of)
        parts.append(Markup('<path d="M{}" stroke="{}"/>').format(path, colour))
    for row in rows:
        colour = _COLOURS.get(row["method"], _OTHER)
        x, y = at_x(row[speed]), at_y(row[key])
        parts.append(Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}"><title>{}</title></circle>')
                     .format(x, y, colour, row["name"]))
    named = [(at_x(row[speed]), at_y(row[key]), row["name"]) for row in rows if row["method"] != DSBD]
    return parts + _names(named)


def _names(points: Sequence[tuple[float, float, str]]) -> list[Markup]:
    """Names on the right of points (x, y), none over another."""
    placed: list[tuple[float, float]] = []
    parts = []
    for x, y, name in sorted(points, key=lambda point: point[1]):
        at = y + 4
        while any(abs(x - other) < 150 and abs(at - height) < 13 for other, height in placed):
            at += 1
        placed.append((x, at))
        parts.append(text(x + 7, at, name, "", "start"))
    return parts
