"""Quality against speed as an SVG document: our figure 4 of the DSBD paper."""

from collections.abc import Sequence

from dare_job.bench.beam.methods import BEAM, DSBD
from dare_job.publish.report.plot import Dot, Line, Panel, document, linear

_COLOURS = {BEAM: "#b2551f", DSBD: "#1f6fb2"}
_OTHER = "#555"


def draw(rows: Sequence[dict], speed: str, about: str) -> str:
    """A panel for nats per token, and one for true statements. speed: key of the rows' tokens per second."""
    return document("Quality against speed of beam sampling, DSBD and sampling",
                    [_panel("log-likelihood under the target, nats per token", rows, speed, "nats"),
                     _panel("share of true statements", rows, speed, "true")], about)


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Pareto front of points (speed, quality), by ascending speed."""
    best: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best[::-1]


def _panel(title: str, rows: Sequence[dict], speed: str, key: str) -> Panel:
    lines = []
    for method, colour in _COLOURS.items():
        if points := [(row[speed], row[key]) for row in rows if row["method"] == method]:
            lines.append(Line("", colour, "", front(points) if method == DSBD else sorted(points)))
    dots = [Dot(row["name"], row[speed], row[key], _COLOURS.get(row["method"], _OTHER),
                labelled=row["method"] != DSBD) for row in rows]
    return Panel(title, lines, dots, linear, linear)
