"""Lines, tables and targets of ``bench beam``.

What a way of writing costs where memory bounds forwards, by the data-sheet curve of ``bench sample``.

The target is charged as Mistral-7B and the draft model as Qwen2.5-0.5B, both on one H100, so many rows
together: a forward of the target by the mean queries that its rows had, and a forward of the draft model a
layer. Beams of a row share what they have in common of keys and values, which are charged once a row.
Verdicts are not charged, nor is drawing.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from rich.console import Console

from dare_job.bench import reports
from dare_job.bench.beam.measure import Written
from dare_job.bench.beam.methods import BEAM, DSBD, SINGLE, Way
from dare_job.bench.sampling import curve
from dare_job.bench.sampling.world import BATCH
from dare_job.decode.beam.layer import min_expected_layers
from dare_job.evaluate.replay.latency import H100, QWEN, forward_ms
from dare_job.publish.report.plot import Dot, Line, Panel, document, linear

FORWARDS = SPEED = 1.5  # at equal quality, over plain beams
ONE_CACHE = ("sampling", "speculative sampling", "token tree sampling", SINGLE)
_HIDDEN = {"method", "law", "draft_law"}
_CACHE = "cache_"  # begins the names of what caches held
_COLOURS = {BEAM: "#b2551f", DSBD: "#1f6fb2"}
_OTHER = "#555"


def step_ms(way: Way, seen: Written) -> float:
    """Of one step of the rows decoded together."""
    queries = math.ceil(seen.queries.sum() / max(1, seen.steps.sum()))
    target = curve.target_ms(max(1, queries))
    if not way.drafted:
        return target
    if way.beams is None:
        return target + curve.draft_ms(way.drawn.widths, seen.tokens.sum() / max(1, seen.steps.sum()))
    return target + way.beams.layers * forward_ms(H100, QWEN, BATCH, way.beams.draft_width)


def tokens_per_s(way: Way, seen: Written) -> float:
    """Tokens of texts a second, of the rows together; prompts are not charged."""
    return float(1e3 * BATCH * seen.tokens.sum() / (seen.steps.sum() * step_ms(way, seen)))


def line(way: Way, seen: Written) -> dict:
    """Of one way. Nats are of a token of the texts under the target, with the standard error over rows."""
    beams = way.beams
    drafted = beams if way.drafted else None
    row = {"name": way.name, "method": way.method, "width": beams.width if beams else 1,
           **{name: getattr(drafted, name, None) for name in ("draft_width", "min_width", "threshold")},
           "law": getattr(drafted, "distribution", None),
           "draft_law": getattr(drafted, "draft_distribution", None),
           "rows": len(seen.tokens), "tokens": int(seen.tokens.sum()), "forwards": int(seen.steps.sum()),
           "tokens_a_forward": seen.tokens.sum() / seen.steps.sum(),
           "layers_a_forward": (seen.layers - 1).sum() / seen.steps.sum(),
           "queries_a_forward": seen.queries.sum() / seen.steps.sum(),
           "nats": seen.per_token.mean(), "nats_error": seen.per_token.std() / len(seen.tokens) ** 0.5,
           "true": seen.true, "kept_width": seen.width, "accepted_width": seen.passed_width,
           "tokens_per_s": seen.tokens.sum() / seen.seconds,
           "tokens_per_s_processor": seen.tokens.sum() / seen.processor,
           "tokens_per_s_memory_bound": tokens_per_s(way, seen),
           "joules_per_token": None if seen.joules is None else seen.joules / seen.tokens.sum(),
           **{_CACHE + name: value for name, value in asdict(seen.memory).items()}}
    return {key: round(float(value), 4) if isinstance(value, float | np.floating) else value
            for key, value in row.items()}


def bounds(ways: list[Way], found: dict[str, Written]) -> list[dict]:
    """Layers of a forward that DSBD wrote, each row's last one left out, beside theorem 3.2 with the mean of
    min(t, beta) over judged layers. The theorem's layers are all alike; where they are not, it is a guide.
    most: share of judged layers that any exact rule could pass, at most, where it was asked.
    """
    lines = []
    for way in ways:
        if way.method == DSBD:
            seen, asked = found[way.name], way.beams
            bound = min_expected_layers(asked.threshold, seen.beta, asked.layers)
            layers = float((seen.layers - 1 - seen.last).sum() / max(1, (seen.steps - 1).sum()))
            lines.append({"name": way.name, "beta": round(seen.beta, 4),
                          "passed": round(seen.passed / max(1, seen.judged), 4),
                          "most": None if seen.most is None else round(seen.most, 4),
                          "layers": round(layers, 3), "bound": round(bound, 3), "holds": layers >= bound})
    return lines


def equal(ways: list[Way], found: dict[str, Written]) -> list[dict]:
    """For each width of plain beams: the DSBD that is fastest where memory bounds forwards, among those whose
    texts are no worse: the mean of the paired differences in nats a token is no further below 0 than its
    standard error, and the share of true statements no more than a hundredth below.
    """
    lines = []
    for plain in (way for way in ways if way.method == BEAM):
        base, best = found[plain.name], None
        for way in (way for way in ways if way.method == DSBD):
            seen = found[way.name]
            apart = seen.per_token - base.per_token
            worse = apart.mean() < -apart.std() / len(apart) ** 0.5 or seen.true < base.true - 0.01
            rate = tokens_per_s(way, seen)
            if not worse and (best is None or rate > best[0]):
                best = rate, way, seen, float(apart.mean())
        if best is None:
            lines.append({"plain": plain.name, "dsbd": None})
            continue
        rate, way, seen, apart = best
        forwards = (base.steps.sum() / base.tokens.sum()) / (seen.steps.sum() / seen.tokens.sum())
        lines.append({"plain": plain.name, "dsbd": way.name, "nats_apart": round(apart, 4),
                      "true_apart": round(seen.true - base.true, 4),
                      "fewer_forwards": round(float(forwards), 3),
                      "memory_bound": round(rate / tokens_per_s(plain, base), 3),
                      "by_clock": round(_rate(seen, seen.seconds) / _rate(base, base.seconds), 3),
                      "by_processor": round(_rate(seen, seen.processor) / _rate(base, base.processor), 3)})
    return lines


def _rate(seen: Written, seconds: float) -> float:
    return float(seen.tokens.sum() / seconds)


def targets(pairs: list[dict], device: str) -> list[dict]:
    """Against the widest plain beams; the clock is a GPU's alone."""
    widest = pairs[-1]
    speeds = [("fewer target forwards", "fewer_forwards", FORWARDS),
              ("faster where memory bounds forwards", "memory_bound", SPEED)]
    if device == "cuda":
        speeds.append(("faster in wall-clock time", "by_clock", SPEED))
    return [{"target": f"{what} than {widest['plain']} at equal quality, at least", "bound": bound,
             "measured": widest.get(key), "met": widest.get(key, 0.0) >= bound}
            for what, key, bound in speeds]


def show(result: dict) -> None:
    console = Console(width=200)
    plain = [{name: value for name, value in row.items() if not name.startswith(_CACHE)}
             for row in result["rows"]]
    caches = [{name: value for name, value in row.items() if name == "name" or name.startswith(_CACHE)}
              for row in result["rows"]]
    cached = [row for row in result["rows"] if row["method"] in ONE_CACHE]
    for title, lines in (("quality and speed", plain), ("caches of a row, at most", caches),
                         ("with one row's cache", cached),
                         ("DSBD of equal quality by width of plain beams", result["equal_quality"]),
                         ("layers a forward and theorem 3.2", result["layers"])):
        names = [name for name in lines[0] if name not in _HIDDEN] if lines else []
        console.print(reports.table(lines, names, title, spaced=True))
    reports.show_targets(console, result["targets"])
    console.print(f"memory bound: tokens a second if forwards cost {curve.ABOUT}, {BATCH} rows together")


def draw(rows: Sequence[dict], speed: str, about: str) -> str:
    """Our figure 4 of the DSBD paper as an SVG document: a panel for nats per token, and one for true
    statements. speed: key of the rows' tokens per second.
    """
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
