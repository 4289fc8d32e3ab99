"""``curve.svg``: distance and AUC loss of each setting against its speed, with bounds."""

from dare_job.evaluate.curve.table import Entry, QualityCurve
from dare_job.publish.report.plot import Dot, Panel, decades, document, from_zero, linear


def draw(curve: QualityCurve) -> str:
    """The curve as an SVG document: a panel for the cosine distance, and one for each CTR model."""
    relaxed = [entry for entry in curve.entries if entry.k is not None]
    strict = (1.0, "strict")
    panels = [Panel(f"1 - cosine similarity to strict text: mean and bound at {curve.level:.0%} "
                    f"({curve.rows} rows)",
                    dots=[_dot(entry, 1 - entry.cosine.mean, 1 - entry.cosine.bound) for entry in relaxed],
                    x=linear, y=decades, reference=strict)]
    panels += [Panel(f"AUC loss against strict text, {model}: mean and bound at {curve.level:.0%} "
                     f"({curve.seeds} seeds)",
                     dots=[_dot(entry, entry.auc[model].mean, entry.auc[model].bound) for entry in relaxed],
                     x=linear, y=from_zero, reference=strict) for model in relaxed[0].auc]
    return document(f"Quality against speed of {len(relaxed)} settings of relaxed verification", panels,
                    f"rows per second relative to strict verification (median of {curve.turns} turns; bar: "
                    "minimum and maximum)")


def _dot(entry: Entry, value: float, bound: float | None) -> Dot:
    speed, slowest, fastest = entry.speed
    return Dot(entry.name, speed, value, x_range=(slowest, fastest), bound=bound)
