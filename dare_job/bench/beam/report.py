"""Rows, tables and targets of ``bench beam``.

The memory-bound cost is that of ``bench sample``: the target is charged as Mistral-7B and the draft model as
Qwen2.5-0.5B, both on one H100: a forward pass of the target by the mean queries of its rows, and a forward
pass of the draft model per layer. Keys and values that a row's beams share are charged once per row.
Verification and sampling are free.
"""

import math
from collections.abc import Sequence

import numpy as np

from dare_job.bench.beam.measure import Generated
from dare_job.bench.beam.methods import BEAM, DSBD, Way
from dare_job.bench.roofline import H100, QWEN, forward_ms
from dare_job.bench.sampling import curve
from dare_job.bench.sampling.world import BATCH
from dare_job.decode.beam.layer import min_expected_layers
from dare_job.evaluate.measured import print_table, print_targets, target_row
from dare_job.publish.report.plot import Dot, Line, Panel, document, linear

FORWARDS = SPEED = 1.5  # at equal quality, over standard beams
_HIDDEN = ("method", "distribution", "draft_distribution")
_COLOURS = {BEAM: "#b2551f", DSBD: "#1f6fb2"}
_OTHER = "#555"


def step_ms(way: Way, generated: Generated) -> float:
    """One step of the rows decoded together."""
    steps = max(1, generated.steps.sum())
    target = curve.target_ms(max(1, math.ceil(generated.queries.sum() / steps)))
    if not way.drafted:
        return target
    if way.beams is None:
        return target + curve.draft_ms(way.sampling.widths, generated.tokens.sum() / steps)
    return target + way.beams.layers * forward_ms(H100, QWEN, BATCH, way.beams.draft_width)


def tokens_per_s(way: Way, generated: Generated) -> float:
    """Memory-bound rate of the rows together, without the prompts."""
    return float(1e3 * BATCH * generated.tokens.sum() / (generated.steps.sum() * step_ms(way, generated)))


def row(way: Way, generated: Generated) -> dict:
    """Table row of one method. nats: mean log-likelihood per token under the target; nats_error: its standard
    error over rows.
    """
    beams, tokens, steps = way.beams, generated.tokens.sum(), generated.steps.sum()
    drafted = beams if way.drafted else None
    figures = {
        "name": way.name, "method": way.method, "width": beams.width if beams else 1,
        **{name: getattr(drafted, name, None) for name in ("draft_width", "min_width", "threshold")},
        "distribution": getattr(drafted, "distribution", None),
        "draft_distribution": getattr(drafted, "draft_distribution", None),
        "rows": len(generated.tokens), "tokens": int(tokens), "forwards": int(steps),
        "tokens_per_forward": tokens / steps, "layers_per_forward": (generated.layers - 1).sum() / steps,
        "queries_per_forward": generated.queries.sum() / steps,
        "nats": generated.per_token.mean(),
        "nats_error": generated.per_token.std() / len(generated.tokens) ** 0.5,
        "true": generated.true, "kept_width": generated.width, "accepted_width": generated.passed_width,
        "tokens_per_s": tokens / generated.seconds,
        "tokens_per_s_processor": tokens / generated.processor,
        "tokens_per_s_memory_bound": tokens_per_s(way, generated),
        "joules_per_token": None if generated.joules is None else generated.joules / tokens}
    return {key: round(float(value), 4) if isinstance(value, float | np.floating) else value
            for key, value in figures.items()}


def layers(ways: list[Way], generated: dict[str, Generated]) -> list[dict]:
    """DSBD's layers per forward pass, without each row's last one, beside theorem 3.2 with the mean of
    min(t, beta) over verified layers. The theorem assumes equal layers; otherwise it is a guide.
    """
    rows = []
    for way in ways:
        if way.method == DSBD:
            own = generated[way.name]
            bound = min_expected_layers(way.beams.threshold, own.beta, way.beams.layers)
            mean = float((own.layers - 1 - own.last).sum() / max(1, (own.steps - 1).sum()))
            rows.append({"name": way.name, "beta": round(own.beta, 4),
                         "passed": round(own.passed / max(1, own.verified), 4),
                         "layers": round(mean, 3), "bound": round(bound, 3), "holds": mean >= bound})
    return rows


def equal_quality(ways: list[Way], generated: dict[str, Generated]) -> list[dict]:
    """For each width of standard beams the DSBD that is fastest if memory bounds forward passes, among those
    whose texts are no worse: the mean of the paired differences in nats per token is no further below 0 than
    its standard error, and the share of true statements is at most 0.01 lower.
    """
    rows = []
    for plain in (way for way in ways if way.method == BEAM):
        base, best = generated[plain.name], None
        for way in (way for way in ways if way.method == DSBD):
            own = generated[way.name]
            apart = own.per_token - base.per_token
            worse = apart.mean() < -apart.std() / len(apart) ** 0.5 or own.true < base.true - 0.01
            rate = tokens_per_s(way, own)
            if not worse and (best is None or rate > best[0]):
                best = rate, way, own, float(apart.mean())
        if best is None:
            rows.append({"plain": plain.name, "dsbd": None})
            continue
        rate, way, own, apart = best
        forwards = (base.steps.sum() / base.tokens.sum()) / (own.steps.sum() / own.tokens.sum())
        tokens = own.tokens.sum() / base.tokens.sum()
        rows.append({"plain": plain.name, "dsbd": way.name, "nats_apart": round(apart, 4),
                     "true_apart": round(own.true - base.true, 4),
                     "fewer_forwards": round(float(forwards), 3),
                     "memory_bound": round(rate / tokens_per_s(plain, base), 3),
                     "by_clock": round(float(tokens * base.seconds / own.seconds), 3),
                     "by_processor": round(float(tokens * base.processor / own.processor), 3)})
    return rows


def targets(pairs: list[dict], device: str) -> list[dict]:
    """Against the widest standard beams; wall-clock targets apply to GPUs only."""
    widest = pairs[-1]
    speeds = [("fewer target forwards", "fewer_forwards", FORWARDS),
              ("faster where memory bounds forwards", "memory_bound", SPEED)]
    if device == "cuda":
        speeds.append(("faster in wall-clock time", "by_clock", SPEED))
    return [target_row(f"{name} than {widest['plain']} at equal quality, at least", bound,
                       widest.get(key, 0.0), widest.get(key, 0.0) >= bound)
            for name, key, bound in speeds]


def show(result: dict) -> None:
    """Print the tables and the targets."""
    for title, rows in (("Quality and speed", result["rows"]),
                        ("DSBD of equal quality by width of standard beams", result["equal_quality"]),
                        ("Layers per forward pass and theorem 3.2", result["layers"])):
        print_table(title, rows, [name for name in rows[0] if name not in _HIDDEN] if rows else ())
    print_targets(result["targets"])
    print(f"memory bound: tokens per second if forward passes cost {curve.ABOUT}, {BATCH} rows together")


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
